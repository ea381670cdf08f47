#!/usr/bin/env bash
# Makes a Debian guest that says READY on its serial port once it has booted, and powers off:
# FOLDER/{disk.raw,vmlinuz,initrd.img}. Needs root, mmdebstrap, mke2fs and a mirror of Debian; takes about two minutes.
# usage: scripts/boot-disk.sh FOLDER
set -euo pipefail
out=$1
export PATH="$PATH:/sbin:/usr/sbin"
mkdir -p "$out"
tree=$out/tree
rm -rf "$tree"
# What a virtual machine boots with is enough in its initrd.
initrd='printf "MODULES=list\n" >"$1/etc/initramfs-tools/conf.d/modules"
printf "virtio_pci\nvirtio_blk\next4\n" >>"$1/etc/initramfs-tools/modules"
chroot "$1" update-initramfs -u'
ready='cat >"$1/etc/systemd/system/ready.service" <<EOF
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/sh -c "echo READY >/dev/ttyS0; sync; systemctl poweroff --force --force"
[Install]
WantedBy=default.target
EOF
chroot "$1" systemctl enable ready.service
echo "/dev/vda / ext4 errors=remount-ro 0 1" >"$1/etc/fstab"'
mmdebstrap --quiet --variant=minbase --include=systemd-sysv,udev,dbus,linux-image-cloud-amd64 \
  --customize-hook="$initrd" --customize-hook="$ready" bookworm "$tree"
cp "$tree"/boot/vmlinuz-* "$out/vmlinuz"
cp "$tree"/boot/initrd.img-* "$out/initrd.img"
truncate -s 2G "$out/disk.raw"
mke2fs -q -F -t ext4 -d "$tree" "$out/disk.raw"
rm -rf "$tree"
