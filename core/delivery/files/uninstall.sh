#!/bin/sh
# 卸载 CG_RAG。sh /opt/cg-rag/uninstall.sh [--prefix 目录] [--purge]；--purge 连同配置与索引一起删除。
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=/opt/cg-rag
[ ! -e "$here/install.env" ] || prefix=$here
purge=no
while [ $# -gt 0 ]; do
    case $1 in
    --purge) purge=yes ;;
    --prefix)
        [ $# -ge 2 ] || { echo "--prefix 需要一个目录" >&2 && exit 2; }
        prefix=${2%/}
        shift
        ;;
    *) echo "用法：sh uninstall.sh [--prefix 目录] [--purge]" >&2 && exit 2 ;;
    esac
    shift
done

# 只删除 install.sh 装下的。
[ -r "$prefix/install.env" ] || { echo "$prefix 中没有由 install.sh 安装的 CG_RAG。" >&2 && exit 1; }
. "$prefix/install.env"

if [ "$SERVICE" = yes ]; then
    systemctl disable --now cg-rag || true
    rm -f "$UNIT_DIR/cg-rag.service"
    systemctl daemon-reload
fi
rm -rf "${prefix:?}/releases" "$prefix/current" "$prefix/bin" "$prefix/models" "$prefix"/python-*
rm -f "$prefix/uninstall.sh" "$prefix/install.env"
rmdir "$prefix" 2>/dev/null || echo "保留 $prefix：其中还有别的文件。"
if [ "$purge" = yes ]; then
    rm -rf "${DATA_DIR:?}/index"
    rm -f "${CONFIG_DIR:?}/config.yaml" "$CONFIG_DIR/config.yaml.new" "$CONFIG_DIR/paths.env" "$CONFIG_DIR/secrets.env"
    rmdir "$DATA_DIR" "$CONFIG_DIR" 2>/dev/null || true
    echo "已卸载，配置与索引已删除。"
else
    echo "已卸载；配置保留在 $CONFIG_DIR，索引保留在 $DATA_DIR。"
fi
