#!/bin/sh
# 按 SHA256SUMS 核对交付件：缺少、改动、多出的文件都算不符。退出码 0 相符，1 不符。
set -eu
cd -- "$(dirname -- "$0")"

if ! sha256sum --check --quiet --strict SHA256SUMS; then
    echo "交付件与 SHA256SUMS 不符，请重新传送。" >&2
    exit 1
fi
listed=$(cut -c67- SHA256SUMS | LC_ALL=C sort)
present=$(find . -type f ! -path ./SHA256SUMS | sed 's|^\./||' | LC_ALL=C sort)
if [ "$listed" != "$present" ]; then
    echo "交付件中有 SHA256SUMS 没有列出的文件：" >&2
    printf '%s\n' "$present" | while IFS= read -r name; do
        printf '%s\n' "$listed" | grep -Fqx -- "$name" || echo "  $name" >&2
    done
    exit 1
fi
echo "交付件完好。清单的 SHA-256（与制作时显示的比对）："
sha256sum SHA256SUMS | cut -c1-64
