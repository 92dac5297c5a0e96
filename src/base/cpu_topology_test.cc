#include "base/cpu_topology.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/cgroup.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/sanitizer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A root folder with the files of /sys and /proc that a test writes.
class FakeRoot {
 public:
  FakeRoot() {
    static int count = 0;
    path_ = (fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
            fmt::format("moesaic_topology_{}_{}", getpid(), count++);
    fs::create_directories(path_);
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << "\n";
  }
  void cpu(int cpu, const std::string& name, const std::string& text) const {
    write(fmt::format("sys/devices/system/cpu/cpu{}/{}", cpu, name), text);
  }
  void cache(int n, int index, int level, const std::string& size, const std::string& cpus) const {
    const std::string folder = fmt::format("cache/index{}/", index);
    cpu(n, folder + "level", fmt::to_string(level));
    cpu(n, folder + "type", "Unified");
    cpu(n, folder + "size", size);
    cpu(n, folder + "shared_cpu_list", cpus);
  }
  void node(int id, const std::string& cpus) const {
    write(fmt::format("sys/devices/system/node/node{}/cpulist", id), cpus);
  }
  // The mount and the group of a container with a namespace of its own.
  void cgroup_v2(const std::string& group) const {
    write("proc/self/cgroup", "0::" + group);
    write("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw");
  }
  std::string path() const { return path_.string(); }
  CpuTopology read(std::vector<int> affinity) const { return read_cpu_topology(path(), std::move(affinity)); }

 private:
  fs::path path_;
};

std::vector<int> up_to(int count) {
  std::vector<int> cpus(static_cast<size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

// Two sockets of 16 cores; the second CPU of core c is c + 32. An L3 for 4 cores.
void make_epyc(const FakeRoot& root) {
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC 7343 16-Core Processor");
  root.write("sys/devices/system/cpu/online", "0-63");
  root.write("sys/devices/system/node/online", "0-1");
  root.node(0, "0-15,32-47");
  root.node(1, "16-31,48-63");
  for (int cpu = 0; cpu < 64; ++cpu) {
    const int core = cpu % 32, l3 = core / 4 * 4;
    root.cpu(cpu, "topology/thread_siblings_list", fmt::format("{},{}", core, core + 32));
    root.cache(cpu, 2, 2, "512K", fmt::format("{},{}", core, core + 32));
    root.cache(cpu, 3, 3, "32768K", fmt::format("{}-{},{}-{}", l3, l3 + 3, l3 + 32, l3 + 35));
  }
}

TEST(CpuList, AsTheKernelWritesIt) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("1023-1025"), (std::vector<int>{1023, 1024, 1025}));
  EXPECT_EQ(parse_cpu_list(""), std::vector<int>());
  for (const char* bad : {"x", "1-", "-1", "3-1", "1,,2", "0-99999999999", "0-70000", "1 2", "0x3", "1-2-3"})
    EXPECT_EQ(parse_cpu_list(bad), std::nullopt) << bad;
}

TEST(CpuTopology, TwoSocketsWithSmt) {
  const FakeRoot root;
  make_epyc(root);
  const CpuTopology t = root.read(up_to(64));
  EXPECT_EQ(t.model, "AMD EPYC 7343 16-Core Processor");
  EXPECT_EQ(t.online, 64);
  ASSERT_EQ(t.cores.size(), 32u);
  EXPECT_EQ(t.cores[5].cpus, (std::vector<int>{5, 37}));
  EXPECT_TRUE(t.smt());
  EXPECT_EQ(t.small_cores(), 0);
  ASSERT_EQ(t.nodes.size(), 2u);
  EXPECT_EQ(t.nodes[1].cores, 16);
  EXPECT_EQ(t.l2.bytes, 512 << 10);
  EXPECT_EQ(t.l2.count, 32);
  EXPECT_EQ(t.l3.bytes, 32 << 20);
  EXPECT_EQ(t.l3.count, 8);

  const ThreadPlan plan = plan_threads(t, 0, true);
  EXPECT_EQ(plan.threads, 32);
  EXPECT_TRUE(plan.pin);
  ASSERT_EQ(plan.nodes.size(), 2u);
  EXPECT_EQ(plan.nodes[1].threads, 16);
  EXPECT_EQ(plan.nodes[1].cpus, t.nodes[1].cpus);
  EXPECT_FALSE(plan_threads(t, 0, false).pin);
  EXPECT_EQ(plan_threads(t, 100, true).threads, 100);  // asked for: siblings and more
  EXPECT_EQ(plan.l2_bytes, 512 << 10);
  EXPECT_EQ(plan_threads(t, 64, true).l2_bytes, 256 << 10);  // siblings share one
  EXPECT_EQ(plan_threads(t, 4, true).l2_bytes, 512 << 10);
  EXPECT_EQ(plan_threads(t, 1, true).nodes.size(), 1u);
  EXPECT_FALSE(plan_threads(t, 1, true).pin);
}

// A mask of a part of one socket, siblings included or not; one over both sockets.
TEST(CpuTopology, AffinityIsRespected) {
  const FakeRoot root;
  make_epyc(root);
  const CpuTopology t = root.read({35, 3, 4, 5});
  EXPECT_EQ(t.usable, (std::vector<int>{3, 4, 5, 35}));
  EXPECT_EQ(t.cores.size(), 3u);
  EXPECT_EQ(t.nodes.size(), 1u);
  EXPECT_EQ(plan_threads(t, 0, true).threads, 3);
  EXPECT_FALSE(plan_threads(t, 0, true).pin);

  const ThreadPlan plan = plan_threads(root.read({0, 1, 2, 16}), 0, true);
  ASSERT_EQ(plan.nodes.size(), 2u);
  EXPECT_EQ(plan.nodes[0].threads, 3);
  EXPECT_EQ(plan.nodes[1].threads, 1);
  EXPECT_EQ(plan.nodes[1].cpus, std::vector<int>{16});

  EXPECT_EQ(root.read({63}).cores[0].cpus, std::vector<int>{63});
}

// Granite Rapids with sub-NUMA clusters: nodes of uneven size (43, 43 and 34 cores of each socket), and one
// of memory alone (CXL).
TEST(CpuTopology, SubNumaClusters) {
  const FakeRoot root;
  root.write("sys/devices/system/cpu/online", "0-239");
  root.write("sys/devices/system/node/online", "0-6");
  const int sizes[] = {43, 43, 34, 43, 43, 34};
  for (int id = 0, first = 0; id < 6; first += sizes[id++])
    root.node(id, fmt::format("{}-{}", first, first + sizes[id] - 1));
  root.node(6, "");
  const CpuTopology t = root.read(up_to(240));
  EXPECT_EQ(t.nodes.size(), 6u);
  for (const int threads : {0, 1, 5, 6, 7, 100, 240, 480}) {
    const ThreadPlan plan = plan_threads(t, threads, true);
    int sum = 0;
    for (const auto& node : plan.nodes) {
      EXPECT_GE(node.threads, 1);
      sum += node.threads;
    }
    EXPECT_EQ(sum, plan.threads);
    EXPECT_EQ(plan.threads, threads > 0 ? threads : 240);
  }
}

TEST(CpuTopology, SmallCores) {
  const FakeRoot alder_lake;  // 8 P cores with siblings, 8 E cores
  alder_lake.write("sys/devices/system/cpu/online", "0-23");
  alder_lake.write("sys/devices/cpu_core/cpus", "0-15");
  alder_lake.write("sys/devices/cpu_atom/cpus", "16-23");
  for (int cpu = 0; cpu < 24; ++cpu) {
    alder_lake.cpu(cpu, "topology/core_cpus_list",
                   cpu < 16 ? fmt::format("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1) : fmt::to_string(cpu));
  }
  const CpuTopology t = alder_lake.read(up_to(24));
  EXPECT_EQ(t.cores.size(), 16u);
  EXPECT_EQ(t.small_cores(), 8);
  EXPECT_FALSE(t.cores[7].small);
  EXPECT_TRUE(t.cores[8].small);
  EXPECT_EQ(plan_threads(t, 0, true).threads, 16);

  const FakeRoot gb10;   // ten of each kind
  const FakeRoot ryzen;  // favoured cores differ a little, and there are no small ones
  for (int cpu = 0; cpu < 20; ++cpu) {
    gb10.cpu(cpu, "cpu_capacity", cpu < 10 ? "718" : "1024");
    ryzen.cpu(cpu, "cpufreq/cpuinfo_max_freq", cpu % 3 == 0 ? "5759000" : "5312000");
  }
  EXPECT_EQ(gb10.read(up_to(20)).small_cores(), 10);
  EXPECT_EQ(ryzen.read(up_to(20)).small_cores(), 0);
}

// Grace: no SMT, one node of CPUs and several of GPU memory; cpuinfo names no model.
TEST(CpuTopology, Grace) {
  const FakeRoot root;
  root.write("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f");
  root.write("sys/devices/system/cpu/online", "0-71");
  root.write("sys/devices/system/node/online", "0-8");
  root.node(0, "0-71");
  for (int id = 1; id < 9; ++id) root.node(id, "");
  for (int cpu = 0; cpu < 4; ++cpu) root.cache(cpu, 3, 3, "116736K", "0-71");
  const CpuTopology t = root.read(up_to(72));
  EXPECT_EQ(t.model, "implementer 0x41, part 0xd4f");
  EXPECT_EQ(t.nodes.size(), 1u);
  EXPECT_EQ(t.l3.bytes, 114 << 20);
  EXPECT_EQ(t.l3.count, 1);
  EXPECT_EQ(plan_threads(t, 0, true).threads, 72);
}

// No /sys, or one full of nonsense: what the mask says is enough.
TEST(CpuTopology, BrokenSys) {
  const FakeRoot absent;
  const CpuTopology t = absent.read({4, 2, 9});
  EXPECT_EQ(t.usable, (std::vector<int>{2, 4, 9}));
  EXPECT_EQ(t.cores.size(), 3u);
  EXPECT_EQ(t.nodes.size(), 1u);
  EXPECT_EQ(t.quota, std::nullopt);
  EXPECT_EQ(plan_threads(t, 0, true).threads, 3);
  EXPECT_EQ(absent.read({}).usable, std::vector<int>{0});

  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(i * 37 % 256);
  const std::string texts[] = {"",    "-1",  "0-",  "99999999999999999999", "0-65535", ",,,",
                               noise, "7-7", "a\nb"};
  const char* names[] = {"sys/devices/system/cpu/online",
                         "sys/devices/system/node/online",
                         "sys/devices/system/node/node0/cpulist",
                         "sys/devices/system/node/node7/cpulist",
                         "sys/devices/cpu_core/cpus",
                         "sys/devices/cpu_atom/cpus",
                         "proc/cpuinfo",
                         "proc/self/cgroup",
                         "proc/self/mountinfo"};
  for (size_t shift = 0; shift < std::size(texts); ++shift) {
    const FakeRoot root;
    size_t n = shift;
    const auto next = [&] { return texts[n++ % std::size(texts)]; };
    for (const char* name : names) root.write(name, next());
    for (int cpu = 0; cpu < 4; ++cpu) {
      for (const char* name : {"topology/core_cpus_list", "topology/thread_siblings_list", "cpu_capacity",
                               "cpufreq/cpuinfo_max_freq", "cache/index2/level", "cache/index2/size",
                               "cache/index2/type", "cache/index2/shared_cpu_list"})
        root.cpu(cpu, name, next());
    }
    const CpuTopology broken = root.read(up_to(4));
    EXPECT_GE(broken.usable.size(), 1u);
    size_t in_cores = 0, in_nodes = 0;
    for (const CpuCore& c : broken.cores) in_cores += c.cpus.size();
    for (const NumaNode& node : broken.nodes) in_nodes += node.cpus.size();
    EXPECT_EQ(in_cores, broken.usable.size());
    EXPECT_EQ(in_nodes, broken.usable.size());
    const ThreadPlan plan = plan_threads(broken, 0, true);
    EXPECT_GE(plan.threads, 1);
    EXPECT_FALSE(describe(broken, plan).empty());
  }
}

// lxcfs lists as many CPUs as the container has, from 0 on, whatever their numbers are.
TEST(CpuTopology, AListOfOtherNumbersTakesNoCpu) {
  const FakeRoot root;
  root.write("sys/devices/system/cpu/online", "0-3");
  const CpuTopology t = root.read({1, 3, 6, 7});
  EXPECT_EQ(t.usable, (std::vector<int>{1, 3, 6, 7}));
  EXPECT_EQ(plan_threads(t, 0, true).threads, 4);
}

TEST(CpuTopology, FilesThatAreFolders) {
  const FakeRoot root;
  for (const char* name : {"sys/devices/system/cpu/online", "sys/devices/system/node/online", "proc/cpuinfo",
                           "proc/self/mountinfo", "sys/devices/system/cpu/cpu0/topology/core_cpus_list"})
    fs::create_directories(fs::path(root.path()) / name);
  EXPECT_EQ(root.read(up_to(2)).cores.size(), 2u);
}

TEST(CgroupQuota, OfAContainer) {
  const FakeRoot root;
  root.cgroup_v2("/");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000");
  const CpuTopology t = root.read(up_to(8));
  EXPECT_EQ(t.quota, 1.5);
  EXPECT_EQ(plan_threads(t, 0, true).threads, 1);
  EXPECT_EQ(plan_threads(t, 3, true).threads, 3);
  EXPECT_EQ(plan_threads(t, 3, true).cpus, 1);
  root.write("sys/fs/cgroup/cpu.max", "50000 100000");
  EXPECT_EQ(plan_threads(root.read(up_to(8)), 0, true).threads, 1);
  root.write("sys/fs/cgroup/cpu.max", "399999 100000");
  EXPECT_EQ(plan_threads(root.read(up_to(8)), 0, true).threads, 3);
  root.write("sys/fs/cgroup/cpu.max", "1600000 100000");  // more than there are
  EXPECT_EQ(plan_threads(root.read(up_to(8)), 0, true).threads, 8);
}

// The limit may stand anywhere above the process.
TEST(CgroupQuota, OfTheWholePath) {
  const FakeRoot root;
  root.cgroup_v2("/system.slice/a b.service/worker");
  root.write("sys/fs/cgroup/system.slice/a b.service/worker/cpu.max", "max 100000");
  EXPECT_EQ(root.read(up_to(8)).quota, std::nullopt);
  root.write("sys/fs/cgroup/system.slice/cpu.max", "250000 50000");
  EXPECT_EQ(root.read(up_to(8)).quota, 5.0);
  root.write("sys/fs/cgroup/system.slice/a b.service/cpu.max", "200000 100000");
  EXPECT_EQ(root.read(up_to(8)).quota, 2.0);
  root.write("sys/fs/cgroup/other/cpu.max", "100000 100000");
  EXPECT_EQ(root.read(up_to(8)).quota, 2.0);
}

TEST(CgroupQuota, Version1) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:cpuset:/docker/x\n4:cpu,cpuacct:/docker/x/y\n0::/");
  root.write("proc/self/mountinfo",
             "32 31 0:29 /docker/x /sys/fs/cgroup/cpu\\040acct rw - cgroup cgroup rw,cpu,cpuacct\n"
             "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
             "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
  root.write("sys/fs/cgroup/cpu acct/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu acct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.read(up_to(8)).quota, std::nullopt);
  root.write("sys/fs/cgroup/cpu acct/y/cpu.cfs_quota_us", "350000");
  root.write("sys/fs/cgroup/cpu acct/y/cpu.cfs_period_us", "100000");
  EXPECT_EQ(root.read(up_to(8)).quota, 3.5);
}

// A group that the mount does not show: what can be seen is the mount itself.
TEST(CgroupQuota, OutsideTheNamespace) {
  const FakeRoot root;
  root.write("secret/cpu.max", "100000 100000");
  root.cgroup_v2("/../../../../secret");
  EXPECT_EQ(root.read(up_to(8)).quota, std::nullopt);
  root.write("sys/fs/cgroup/cpu.max", "300000 100000");
  EXPECT_EQ(root.read(up_to(8)).quota, 3.0);
  for (const char* bad : {"", "100000", "x y", "-5 100000", "100000 0", "nan nan", "max"}) {
    root.write("sys/fs/cgroup/cpu.max", bad);
    EXPECT_EQ(root.read(up_to(8)).quota, std::nullopt) << bad;
  }
}

// The machine that runs this.
TEST(CpuTopology, OfThisMachine) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) GTEST_SKIP() << "more than 1024 CPUs";
  EXPECT_EQ(std::ssize(current_affinity()), CPU_COUNT(&set));
  const CpuTopology t = read_cpu_topology();
  EXPECT_LE(plan_threads(t, 0, true).threads, CPU_COUNT(&set));
  for (const std::string& line : describe(t, plan_threads(t, 0, true))) fmt::print("{}\n", line);
}

TEST(CgroupMemory, TheLeastOfAllGroups) {
  const FakeRoot root;
  EXPECT_FALSE(cgroup_memory(root.path()));
  root.cgroup_v2("/a/b");
  root.write("sys/fs/cgroup/a/b/memory.max", "max");
  root.write("sys/fs/cgroup/a/b/memory.current", "100");
  EXPECT_FALSE(cgroup_memory(root.path()));
  root.write("sys/fs/cgroup/a/memory.max", "1000");
  root.write("sys/fs/cgroup/a/memory.current", "900");
  root.write("sys/fs/cgroup/a/memory.stat", "anon 500\nfile 400\nactive_file 100\ninactive_file 250");
  EXPECT_EQ(cgroup_memory(root.path())->limit, 1000);
  EXPECT_EQ(cgroup_memory(root.path())->available, 1000 - 900 + 350);
  root.write("sys/fs/cgroup/a/b/memory.max", "99");  // less than it has already
  EXPECT_EQ(cgroup_memory(root.path())->limit, 99);
  EXPECT_EQ(cgroup_memory(root.path())->available, 0);
}

// A unit of systemd may set both limits.
TEST(CgroupMemory, AGroupThatIsThrottledAboveItsMemoryHigh) {
  const FakeRoot root;
  root.cgroup_v2("/a");
  root.write("sys/fs/cgroup/a/memory.max", "max");
  root.write("sys/fs/cgroup/a/memory.high", "800");
  root.write("sys/fs/cgroup/a/memory.current", "100");
  EXPECT_EQ(cgroup_memory(root.path())->limit, 800);
  EXPECT_EQ(cgroup_memory(root.path())->available, 700);
  root.write("sys/fs/cgroup/a/memory.max", "900");
  EXPECT_EQ(cgroup_memory(root.path())->limit, 800);
  root.write("sys/fs/cgroup/a/memory.high", "max");
  EXPECT_EQ(cgroup_memory(root.path())->limit, 900);
}

TEST(CgroupMemory, Version1) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:cpuset:/x\n4:memory:/x");
  root.write("proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000");
  EXPECT_FALSE(cgroup_memory(root.path()));
  root.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "3000");
  root.write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "2000");
  root.write("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 300");
  EXPECT_EQ(cgroup_memory(root.path())->available, 3000 - 2000 + 300);
}

TEST(HostMemory, IsWithinTheLimitOfTheAddressSpace) {
  ASSERT_GT(available_host_memory(), 0);
  EXPECT_GE(total_host_memory(), available_host_memory());
  if (kMemoryIsSanitized) return;  // it has reserved more than any limit
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages;
  const double used = pages * static_cast<double>(getpagesize());
  const rlimit limit{static_cast<rlim_t>(used) + (rlim_t{64} << 20), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  rlimit in_effect{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &in_effect), 0);
  if (in_effect.rlim_cur != limit.rlim_cur) GTEST_SKIP() << "qemu-user sets no limit of the address space";
  const double available = available_host_memory();
  setrlimit(RLIMIT_AS, &before);
  EXPECT_LE(available, 65 << 20);
  EXPECT_GE(available, 32 << 20);
}

}  // namespace
}  // namespace moesaic
