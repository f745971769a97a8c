# What a rented instance runs at every start, and what is sent again over SSH for platforms that have not run it.
# Doing it twice is harmless. Needs a POSIX shell and coreutils. The lines above set token, mode, public_key,
# proof_secret, deadline_s, id_name, key_name, and hold the two programs start_sh and farewell_sh.
case $0 in */tune-boot.*) rm -f "$0" ;; esac # it is open, and needed no more; nothing else is ever removed
set -u
umask 077
: "${HOME:=/root}"
export HOME

mkdir -p "$HOME/.ssh" "$HOME/.tune"
: >"$HOME/.no_auto_tmux" # Vast.ai wraps logins in tmux otherwise, which breaks commands
keys=$HOME/.ssh/authorized_keys
if [ -n "$public_key" ] && ! grep -qxF "$public_key" "$keys" 2>/dev/null; then
    [ ! -s "$keys" ] || [ -z "$(tail -c 1 "$keys")" ] || echo >>"$keys"
    printf '%s\n' "$public_key" >>"$keys"
fi

# A login does not have the container's PATH, where an image keeps its own Python.
path=$(tr '\0' '\n' 2>/dev/null </proc/1/environ | sed -n 's/^PATH=//p')
export PATH="$PATH${path:+:$path}"

# The tune home lies on the biggest disk, and stays where it is when the container is started again.
free_kb() {
    df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'
}
home=''
[ -s "$HOME/.tune/$token" ] && read -r home <"$HOME/.tune/$token"
if [ -z "$home" ]; then
    best=$HOME
    most=$(free_kb "$HOME")
    for place in /workspace /data; do
        [ -w "$place" ] || continue
        here=$(free_kb "$place")
        [ "${here:-0}" -gt "${most:-0}" ] && best=$place && most=$here
    done
    home=$best/tune/$token
fi
mkdir -p "$home/log" || exit 1
printf '%s\n' "$home" >"$HOME/.tune/$token"

# The key that the marketplace has put here for this instance alone. It is not in the environment of a login.
found() {
    { env; tr '\0' '\n' </proc/1/environ; cat /etc/rp_environment /etc/environment; } 2>/dev/null |
        sed -n "s/^\(export \)*$1=\(.\)/\2/p" | tr -d "\"'" | head -n 1
}
id=$(found "$id_name")
key=$(found "$key_name")
[ -n "$id" ] && [ -n "$key" ] && printf '%s\n%s\n' "$id" "$key" >"$home/instance.env"
printf '%s' "$farewell_sh" >"$home/farewell.sh"

# With the secret from the create request this instance vouches for its host keys. An image that keeps them elsewhere
# says so in TUNE_HOST_KEYS.
vouch() {
    [ -n "$proof_secret" ] || return 0
    for file in ${TUNE_HOST_KEYS:-/etc/ssh/ssh_host_*_key.pub}; do
        [ -r "$file" ] && read -r _ blob _ <"$file" || continue
        printf '%s:%s:%s' "$proof_secret" "$blob" "$proof_secret" | sha256sum | cut -c 1-64
    done >"$home/.keys"
    [ -s "$home/.keys" ] && mv "$home/.keys" "$home/host-keys"
}

# Only a container of our own is given an SSH server; PID 1 of one runs this very text. The loop does not wait for it:
# what takes for ever must not keep the deadline from being kept.
if [ "$mode" = foreground ] && tr '\0' ' ' 2>/dev/null </proc/1/cmdline | grep -q tune-boot &&
    ! grep -qs '^ *[0-9]*: [0-9A-F]*:0016 [0-9A-F:]* 0A' /proc/net/tcp /proc/net/tcp6; then
    let_in >>"$home/log/image.log" 2>&1 </dev/null &
else
    vouch
fi

# One loop, whoever comes first. A number alone may be somebody else's after a restart, so its command line is looked at.
exec 9>"$home/.start.lock"
command -v flock >/dev/null && flock -w 30 9
[ -s "$home/start.pid" ] && read -r pid <"$home/start.pid" &&
    tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$home/start.sh" && exit 0
printf '%s' "$start_sh" >"$home/start.sh"
export TUNE_HOME="$home" TUNE_DEADLINE_S="$deadline_s" TUNE_FAREWELL=''
[ -n "$id_name" ] && TUNE_FAREWELL='sh "$TUNE_HOME/farewell.sh" end'
if [ "$mode" = foreground ]; then
    echo $$ >"$home/start.pid"
    exec sh "$home/start.sh" 9>&-
fi
command -v setsid >/dev/null && apart=setsid || apart=''
$apart sh "$home/start.sh" >/dev/null 2>&1 </dev/null 9>&- &
echo $! >"$home/start.pid"
