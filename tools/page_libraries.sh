#!/bin/sh
# Packs the libraries of the chat page, as Debian's packages have them, for systems without such packages: unpacked, their
# folder is -DMOESAIC_PAGE_FROM=... It has the layout of npm's node_modules.
#   tools/page_libraries.sh FILE.tar.gz
set -eu
out=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/moesaic-page-libraries
mkdir -p "$root/marked" "$root/dompurify/dist" "$root/highlight.js/lib/languages" "$root/katex/dist/fonts" "$root/licences"
first() { for file; do if [ -e "$file" ]; then echo "$file"; return; fi; done; echo "page_libraries: no $1: tools/setup.sh build" >&2; return 1; }
javascript=/usr/share/javascript
cp -L "$(first $javascript/marked/marked.min.js /usr/share/nodejs/marked/marked.min.js)" "$root/marked/marked.min.js"
cp -L "$(first /usr/share/nodejs/dompurify/dist/purify.min.js)" "$root/dompurify/dist/purify.min.js"
cp -L "$(first /usr/share/nodejs/highlight.js/lib/highlight.js)" "$root/highlight.js/lib/highlight.js"
cp -L /usr/share/nodejs/highlight.js/lib/languages/*.js "$root/highlight.js/lib/languages/"
cp -L "$(first $javascript/katex/katex.min.js)" "$(first $javascript/katex/katex.min.css)" "$root/katex/dist/"
cp -L /usr/share/fonts/truetype/katex/KaTeX_*.woff2 "$root/katex/dist/fonts/"
for package in libjs-marked node-dompurify node-highlight.js libjs-katex fonts-katex; do
  cp -L "/usr/share/doc/$package/copyright" "$root/licences/$package"
done
tar -C "$folder" --sort=name --owner=0 --group=0 -czf "$out" moesaic-page-libraries
