#!/usr/bin/env python3
"""tidy.py on two files at a time: names that it renames, those that keep files apart, and what clang-tidy then finds."""
import os
import shutil
import tempfile
import unittest

import tidy

HELPER = """namespace moesaic {
namespace {

struct Case {
  int rows;
};

constexpr int kRows = %d;

int rows_of(const Case& c) { return c.rows + kRows; }

TEST(Rows, AreCounted) { EXPECT_EQ(rows_of(Case{/*rows_of=*/1}), moesaic::kRows + 1); }

}  // namespace
}  // namespace moesaic
"""


class Groups(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def group(self, *files):
        group = tidy.Group((False,))
        for name in files:
            if not group.takes(name):
                return None
            group.add(name, ["-std=c++20"])
        return group

    def test_names_of_two_files_get_numbers(self):
        group = self.group(self.file("a.cc", HELPER % 3), self.file("b.cc", HELPER % 4))
        texts = [text for _, text in group.renamed()]
        self.assertEqual(len(texts), 2)
        self.assertIn("int rows_of_1(const Case1& c) { return c.rows + kRows1; }", texts[1])
        self.assertIn("TEST(Rows, AreCounted1) { EXPECT_EQ(rows_of_1(Case1{/*rows_of=*/1}), moesaic::kRows1 + 1); }", texts[1])

    def test_a_name_that_one_file_has_stays(self):
        self.assertEqual(list(self.group(self.file("a.cc", HELPER % 3), self.file("b.cc", "int other() { return 1; }\n")).renamed()), [])

    def test_a_name_of_its_own_is_another_than_in_a_header_of_others(self):
        self.file("rows.h", "namespace moesaic {\nint rows_of(int x);\n}  // namespace moesaic\n")
        user = self.file("a.cc", '#include "rows.h"\nnamespace moesaic {\nint rows_of(int x) { return x; }\n}  // namespace moesaic\n')
        group = self.group(user, self.file("b.cc", HELPER % 4))
        self.assertEqual([os.path.basename(name) for name, _ in group.renamed()], ["b.cc"])

    def test_names_of_members_keep_files_apart(self):
        text = "namespace {\nstruct A {\n  int size_of() const;\n};\nint size_of(A a) { return a.size_of(); }\n}  // namespace\n"
        self.assertIsNone(self.group(self.file("a.cc", text), self.file("b.cc", text)))

    @unittest.skipUnless(shutil.which("clang-tidy"), "no clang-tidy")
    def test_findings_are_those_of_the_file(self):
        main = "namespace {\nint* first() { return %s; }\n}  // namespace\nint main() { return first() == nullptr ? 0 : 1; }\n"
        os.makedirs(os.path.join(self.folder, "src"))
        shutil.copy(os.path.join(tidy.ROOT, ".clang-tidy"), self.folder)
        files = [self.file("src/a.cpp", main % "nullptr"), self.file("src/b.cpp", main % "0")]
        findings = tidy.check(self.group(*files), os.path.join(self.folder, "group"), [], "")
        self.assertIn(f"{files[1]}:2:25: error: use nullptr", findings)
        self.assertNotIn(files[0], findings)


if __name__ == "__main__":
    unittest.main()
