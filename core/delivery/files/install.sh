#!/bin/sh
# 安装 CG_RAG @VERSION@（@PLATFORM@，Python @PYTHON@），不需要网络。sh install.sh --help 显示选项。
# 再次运行即升级；运行旧交付件的 install.sh 即退回旧版本。配置与索引保留。
set -eu
umask 022

version='@VERSION@'
machine='@MACHINE@'
python_version='@PYTHON@'
glibc_minor='@GLIBC_MINOR@'
embedding_model='@EMBEDDING_MODEL@'
rerank_model='@RERANK_MODEL@'

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
prefix=/opt/cg-rag
config_dir=/etc/cg-rag
data_dir=/var/lib/cg-rag
unit_dir=/etc/systemd/system
user=cg-rag
python=
service=auto

usage() {
    cat <<END
用法：sh install.sh [选项]
  --prefix 目录       程序，缺省 $prefix
  --config-dir 目录   配置，缺省 $config_dir
  --data-dir 目录     索引，缺省 $data_dir
  --python 文件       所用的 Python $python_version；缺省依次为交付件中的、PATH 中的 python$python_version
  --user 用户         运行服务的用户，没有则新建，缺省 $user
  --unit-dir 目录     systemd 单元，缺省 $unit_dir
  --no-service        不安装 systemd 服务（不是 root 或没有 systemd 时即如此）
END
}

fail() {
    echo "安装失败：$*" >&2
    exit 1
}

say() { echo "== $*"; }

while [ $# -gt 0 ]; do
    case $1 in
    --no-service) service=no ;;
    --help | -h) usage && exit 0 ;;
    --prefix | --config-dir | --data-dir | --python | --user | --unit-dir)
        [ $# -ge 2 ] || { usage >&2 && exit 2; }
        case $2 in
        '' | *[!A-Za-z0-9._/-]*) echo "$1 只能由字母、数字与 . _ / - 组成：$2" >&2 && exit 2 ;;
        esac
        case $1 in
        --user) user=$2 ;;
        --python) python=$2 ;;
        *)
            case $2 in /*) ;; *) echo "$1 须为绝对路径：$2" >&2 && exit 2 ;; esac
            case $1 in
            --prefix) prefix=${2%/} ;;
            --config-dir) config_dir=${2%/} ;;
            --data-dir) data_dir=${2%/} ;;
            --unit-dir) unit_dir=${2%/} ;;
            esac
            ;;
        esac
        shift
        ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift
done

if [ "$service" = auto ]; then
    service=no
    if [ "$(id -u)" = 0 ] && command -v systemctl >/dev/null 2>&1; then service=yes; fi
fi

say "核对交付件"
sh "$here/verify.sh"

say "检查本机"
[ "$(uname -m)" = "$machine" ] || fail "交付件用于 $machine，本机为 $(uname -m)。"
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc 2\.\([0-9]*\).*/\1/')
case $glibc in
'' | *[!0-9]*) fail "本机的 C 库不是 glibc。" ;;
esac
[ "$glibc" -ge "$glibc_minor" ] || fail "需要 glibc 2.$glibc_minor 以上，本机为 2.$glibc。"

stamp=$(sha256sum "$here/SHA256SUMS" | cut -c1-8)
release=$prefix/releases/$version-$stamp
if [ -e "$prefix" ] && [ ! -e "$prefix/install.env" ] && [ -n "$(ls -A "$prefix")" ]; then
    fail "$prefix 中已有别的文件，请用 --prefix 另指定。"
fi
mkdir -p "$prefix/releases" "$prefix/bin" "$config_dir" "$data_dir"
# 先记下装到了哪里：中途失败也能由 uninstall.sh 清除。
cat >"$prefix/install.env" <<END
CONFIG_DIR=$config_dir
DATA_DIR=$data_dir
UNIT_DIR=$unit_dir
SERVICE=$service
SERVICE_USER=$user
END
cp "$here/uninstall.sh" "$prefix/uninstall.sh"

if [ -z "$python" ]; then
    for archive in "$here"/python/*; do
        [ -f "$archive" ] || continue
        folder=$prefix/python-$(sha256sum "$archive" | cut -c1-8)
        if [ ! -e "$folder/.complete" ]; then
            say "解开 Python：${archive##*/}"
            rm -rf "$folder"
            mkdir -p "$folder"
            tar -xf "$archive" -C "$folder"
            : >"$folder/.complete"
        fi
        python=$(find "$folder" -path "*/bin/python$python_version" | head -n 1)
    done
fi
[ -n "$python" ] || python=$(command -v "python$python_version") ||
    fail "没有找到 python$python_version：用 --python 指定，或制作交付件时加 --python-archive。"
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || fail "$python 不能运行。"
[ "$found" = "$python_version" ] || fail "交付件用于 Python $python_version，$python 为 $found。"

if [ ! -e "$release/.complete" ]; then
    say "安装程序到 $release"
    rm -rf "$release"
    unset PYTHONPATH PYTHONHOME
    "$python" -m venv --without-pip "$release"
    pip_wheel=$(ls "$here"/wheels/pip-*.whl)
    PIP_CONFIG_FILE=/dev/null "$release/bin/python" "$pip_wheel/pip" --isolated --quiet \
        install --no-cache-dir --disable-pip-version-check --no-index --find-links "$here/wheels" \
        --require-hashes --requirement "$here/requirements.txt"
    : >"$release/.complete"
fi

for archive in "$here"/models/*.tar; do
    [ -f "$archive" ] || continue
    name=$(basename "$archive" .tar)
    say "安装模型 $name"
    mkdir -p "$prefix/models"
    rm -rf "$prefix/models/.new"
    mkdir "$prefix/models/.new"
    tar -xf "$archive" -C "$prefix/models/.new"
    rm -rf "$prefix/models/$name"
    mv "$prefix/models/.new/$name" "$prefix/models/$name"
    rmdir "$prefix/models/.new"
done

if [ ! -e "$config_dir/config.yaml" ]; then
    cp "$here/config.yaml" "$config_dir/config.yaml"
elif ! cmp -s "$here/config.yaml" "$config_dir/config.yaml"; then
    cp "$here/config.yaml" "$config_dir/config.yaml.new"
    say "保留原有配置；交付件的配置另存为 $config_dir/config.yaml.new"
fi
{
    echo "# 由 install.sh 写成，每次安装重写；密钥与其他设置写在 config.yaml 或 secrets.env 中。"
    echo "CG_RAG_CONFIG=$config_dir/config.yaml"
    echo "CG_RAG_INDEX_DIR=$data_dir/index"
    [ -z "$embedding_model" ] || echo "CG_RAG_EMBEDDING_MODEL_DIR=$prefix/models/$embedding_model"
    [ -z "$rerank_model" ] || echo "CG_RAG_RERANK_MODEL_DIR=$prefix/models/$rerank_model"
} >"$config_dir/paths.env"

# 换上新版本只是换一个链接；原来的版本留着，以便退回。
before=$(readlink "$prefix/current" 2>/dev/null || true)
ln -sfn "releases/$version-$stamp" "$prefix/current.new"
mv -T "$prefix/current.new" "$prefix/current"
for old in "$prefix"/releases/*; do
    case "releases/${old##*/}" in
    "releases/$version-$stamp" | "$before") ;;
    *) rm -rf "$old" ;;
    esac
done

cat >"$prefix/bin/cg-rag" <<END
#!/bin/sh
# 与服务用同一份配置；demo 有自己的索引，不用它。
if [ "\${1:-}" != demo ]; then
    set -a
    . "$config_dir/paths.env"
    if [ -r "$config_dir/secrets.env" ]; then . "$config_dir/secrets.env"; fi
    set +a
fi
exec "$prefix/current/bin/python" -m cg_rag "\$@"
END
chmod 755 "$prefix/bin/cg-rag"

for archive in "$here"/index/*.tar.gz; do
    [ -f "$archive" ] || continue
    say "安装索引"
    "$prefix/bin/cg-rag" index install "$archive"
done

if [ "$service" = yes ]; then
    say "安装 systemd 服务 cg-rag"
    id -u "$user" >/dev/null 2>&1 ||
        useradd --system --no-create-home --home-dir "$data_dir" --shell /sbin/nologin "$user"
    chown -R "$user" "$data_dir"
    # 配置中可能有密钥。
    chgrp -R "$(id -gn "$user")" "$config_dir"
    chmod -R o-rwx "$config_dir"
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@CONFIG_DIR@|$config_dir|g" -e "s|@DATA_DIR@|$data_dir|g" \
        -e "s|@USER@|$user|g" "$here/cg-rag.service" >"$unit_dir/cg-rag.service"
    systemctl daemon-reload
    systemctl enable cg-rag
    systemctl restart cg-rag
fi

say "自检"
if ! "$prefix/bin/cg-rag" doctor; then
    [ -n "$(ls "$here"/index/*.tar.gz 2>/dev/null)" ] || [ -e "$data_dir/index/current" ] ||
        fail "程序已装好，还没有索引：运行 $prefix/bin/cg-rag index build 来源… 后再运行 doctor。"
    fail "程序已装好，自检发现错误，见上。"
fi
say "完成：$prefix/bin/cg-rag"
[ "$service" = yes ] || echo "启动：$prefix/bin/cg-rag serve"
