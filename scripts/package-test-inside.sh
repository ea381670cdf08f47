#!/usr/bin/env bash
# The part of scripts/package-test.sh that runs as a service of the booted Debian.
set -euo pipefail
export TZ=UTC
trap 'echo "failed at line $LINENO"; journalctl --no-pager -n 60 -u "silt-*" || true' ERR
step() { echo "-- $*"; }
fails() { if "$@"; then echo "this must fail: $*"; return 1; fi; }

step "install: nothing is enabled, the configuration is correct"
dpkg -i first.deb >/dev/null
silt --version
silt config check
[ -s /usr/share/man/man1/silt-backup.1.gz ] && [ -s /usr/share/bash-completion/completions/silt ]
fails systemctl is-enabled --quiet silt-backup@default.timer
systemctl cat silt-backup@default.service silt-backup@default.timer >/dev/null

step "a profile, a disk that only another user may read, and a password as a credential"
cat >>/etc/silt/silt.toml <<'TOML'
[profiles.default]
repository = "/var/backups/silt"
password-file = "credential:silt-default.password"
[profiles.default.retention]
keep-last = 1
[profiles.default.series.web1]
volumes = { root = "/srv/web1.raw", disk = "/dev/test-disk" }
TOML
install -d -m 700 /etc/credstore
(umask 077; echo secret >/etc/credstore/silt-default.password)
truncate -s 64M /srv/web1.raw
dd if=/dev/urandom of=/srv/web1.raw bs=1M seek=8 count=24 conv=notrunc status=none
chown nobody: /srv/web1.raw
chmod 600 /srv/web1.raw
# By hand the credential comes from the machine's folder.
silt --quiet init --kdf-memory 8 --kdf-passes 1

step "the timer is enabled and starts a backup; the service is started once more by hand"
install -d /etc/systemd/system/silt-backup@default.timer.d
printf '[Timer]\nOnActiveSec=2s\nRandomizedDelaySec=0\nAccuracySec=1s\n' \
  >/etc/systemd/system/silt-backup@default.timer.d/soon.conf
systemctl daemon-reload
systemctl enable --quiet --now silt-backup@default.timer
systemctl list-timers --no-pager | grep -q silt-backup@default.timer
for _ in $(seq 120); do
  [ "$(systemctl show -P ExecMainExitTimestampMonotonic silt-backup@default.service)" = 0 ] || break
  sleep 1
done
[ "$(systemctl show -P Result silt-backup@default.service)" = success ]
[ "$(silt snapshots --json | wc -l)" -eq 1 ]
dd if=/dev/urandom of=/srv/web1.raw bs=1M seek=40 count=1 conv=notrunc status=none
systemctl start silt-backup@default.service
[ "$(silt snapshots --json | wc -l)" -eq 2 ]
silt status --max-age 26h
silt restore web1@latest:root /root/restored.raw --quiet
cmp /srv/web1.raw /root/restored.raw
silt restore web1@latest:disk /root/disk.raw --quiet
cmp /dev/test-disk /root/disk.raw
[ -d /var/lib/silt ] && [ "$(stat -c %a /var/lib/silt)" = 700 ]
[ "$(find /var/lib/silt -type f | wc -l)" -gt 0 ]

step "the service checks, applies retention, and optimizes"
systemctl start silt-check@default.service
systemctl start silt-forget@default.service
systemctl start silt-optimize@default.service
[ "$(silt snapshots --json | wc -l)" -eq 1 ]

step "the service is restricted: it writes nowhere else"
sed 's#^ExecStart=.*#ExecStart=/bin/sh -c "grep -E \\"^(CapEff|NoNewPrivs)\\" /proc/self/status; touch /usr/x \&\& exit 1; touch /srv/x \&\& exit 1; mount -t tmpfs none /mnt \&\& exit 1; cat /home/x; touch /var/lib/silt/x /var/backups/silt/x"#' \
  /lib/systemd/system/silt-backup@.service >/run/systemd/system/silt-probe@.service
systemctl daemon-reload
install -d /home
echo home >/home/x
systemctl start silt-probe@default.service
journalctl --no-pager -o cat -u silt-probe@default.service | grep -q '^CapEff:.0000000000000006'
journalctl --no-pager -o cat -u silt-probe@default.service | grep -q '^NoNewPrivs:.1'
journalctl --no-pager -o cat -u silt-probe@default.service | grep -qx home
[ -e /var/lib/silt/x ] && [ -e /var/backups/silt/x ] && rm /var/lib/silt/x /var/backups/silt/x

step "failures: a wrong password, a repository that is not there; stopping is none"
echo wrong >/etc/credstore/silt-default.password
fails systemctl start silt-backup@default.service
[ "$(systemctl show -P ExecMainStatus silt-backup@default.service)" -eq 12 ]
echo secret >/etc/credstore/silt-default.password
systemctl start silt-backup@default.service
fails systemctl start silt-backup@nobody.service
[ "$(systemctl show -P ExecMainStatus silt-backup@nobody.service)" -eq 2 ]
cat >>/etc/silt/silt.toml <<'TOML'
[profiles.slow]
repository = "/var/backups/silt"
password-file = "credential:silt-slow.password"
limit-read = 1
[profiles.slow.series.slow]
before = "echo started >/var/lib/silt/started"
volumes = { root = "/srv/web1.raw" }
TOML
cp /etc/credstore/silt-default.password /etc/credstore/silt-slow.password
systemctl start --no-block silt-backup@slow.service
for _ in $(seq 600); do [ ! -e /var/lib/silt/started ] || break; sleep 0.1; done
systemctl stop silt-backup@slow.service
journalctl --no-pager -o cat -u silt-backup@slow.service | grep -q 'silt: interrupted'
fails systemctl is-failed --quiet silt-backup@slow.service

step "an alert by the examples"
cp /usr/share/doc/silt/examples/silt-alert@.service /etc/systemd/system/
install -d /etc/systemd/system/silt-backup@.service.d
cp /usr/share/doc/silt/examples/alert.conf /etc/systemd/system/silt-backup@.service.d/
printf '#!/bin/sh\n{ echo "$@"; cat; } >/root/mail\n' >/usr/local/bin/mail
chmod +x /usr/local/bin/mail
systemctl daemon-reload
fails systemctl start silt-backup@nobody.service
for _ in $(seq 600); do ! grep -q "no profile 'nobody'" mail 2>/dev/null || break; sleep 0.1; done
grep -q "silt-backup@nobody.service failed" mail
grep -q "no profile 'nobody'" mail

step "an encrypted credential"
mkdir -p /etc/credstore.encrypted
mv /etc/credstore/silt-default.password plain
systemd-creds encrypt --with-key=host --name=silt-default.password plain \
  /etc/credstore.encrypted/silt-default.password
install -d /etc/systemd/system/silt-backup@default.service.d
printf '[Service]\nLoadCredential=\nLoadCredentialEncrypted=silt-%%i.password\n' \
  >/etc/systemd/system/silt-backup@default.service.d/encrypted.conf
systemctl daemon-reload
systemctl start silt-backup@default.service
mv plain /etc/credstore/silt-default.password
rm -r /etc/systemd/system/silt-backup@default.service.d
systemctl daemon-reload

step "commands before and after may do more with the drop-in of the examples"
cat >>/etc/silt/silt.toml <<'TOML'
[profiles.hooks]
repository = "/var/backups/silt"
password-file = "credential:silt-default.password"
[profiles.hooks.series.hooks]
before = "mount -t tmpfs none /mnt && cp /srv/web1.raw /mnt/web1.raw"
volumes = { root = "/mnt/web1.raw" }
after = "umount /mnt"
TOML
cp /etc/credstore/silt-default.password /etc/credstore/silt-hooks.password
sed -i '/profiles.hooks\]/,/^after/s/silt-default.password/silt-hooks.password/' /etc/silt/silt.toml
fails systemctl start silt-backup@hooks.service
install -d /etc/systemd/system/silt-backup@hooks.service.d
cp /usr/share/doc/silt/examples/hooks.conf /etc/systemd/system/silt-backup@hooks.service.d/
systemctl daemon-reload
systemctl start silt-backup@hooks.service

step "upgrade: the configuration and the timer stay"
dpkg -i second.deb >/dev/null
[ "$(dpkg-query -W -f '${Version}' silt)" != "$(dpkg-deb -f first.deb Version)" ]
grep -q '^\[profiles.slow\]' /etc/silt/silt.toml
systemctl is-active --quiet silt-backup@default.timer
systemctl start silt-backup@default.service

step "removal and purge: state and cache go, the repository stays"
rm -r /etc/systemd/system/silt-backup@hooks.service.d
dpkg -r silt >/dev/null
[ -e /etc/silt/silt.toml ] && [ -d /var/lib/silt ]
fails systemctl is-active --quiet silt-backup@default.timer
mkdir -p /var/cache/silt/mine
touch /var/cache/silt/mine/.reserve
dpkg -P silt
[ ! -e /etc/silt ] && [ ! -e /var/lib/silt ] && [ -e /var/cache/silt/mine/.reserve ]
[ ! -L /etc/systemd/system/timers.target.wants/silt-backup@default.timer ]
dpkg -i second.deb >/dev/null
rm -r /var/cache/silt/mine
dpkg -P silt
[ ! -e /var/cache/silt ]
dpkg -i first.deb >/dev/null
echo secret >password
silt -r /var/backups/silt --password-file password check --read-data
echo PASSED
