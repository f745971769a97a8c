#!/bin/sh
# Runs on an instance from its first boot on. Needs a POSIX shell, date, sleep and mkdir.
#
#   TUNE_HOME        the tune home
#   TUNE_DEADLINE_S  seconds from the first boot after which the instance must not exist any more
#   TUNE_FAREWELL    a shell command line that ends the instance; may be empty
#
# Waits for $TUNE_HOME/agent.sh, runs it, and runs it again when it dies: the agent takes over a living trainer. From
# the deadline on, or once the agent has written $TUNE_HOME/ended, it asks for the end of the instance until it comes.
set -u

home=${TUNE_HOME:?TUNE_HOME is not set}
farewell=${TUNE_FAREWELL:-}
agent=''
agent_since=0
not_before=0
back_off=1
leaving=''
asked=''
pause=1

mkdir -p "$home/log"

is_number() {
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    esac
}

say() {
    printf '%s start: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$1" >>"$home/log/agent.out"
}

# The deadline is absolute and kept: a container that is restarted does not get a longer life.
set_deadline() {
    deadline=''
    if [ -r "$home/deadline" ]; then
        read -r deadline <"$home/deadline" || :
    fi
    is_number "$deadline" && return
    life=${TUNE_DEADLINE_S:-}
    life=${life%%.*}
    is_number "$life" || life=86400
    deadline=$(($(date +%s) + life))
    printf '%s\n' "$deadline" >"$home/deadline.$$" && mv "$home/deadline.$$" "$home/deadline"
}

is_over() {
    [ -e "$home/ended" ] || [ "$(date +%s)" -ge "$deadline" ]
}

agent_lives() {
    [ -n "$agent" ] && kill -0 "$agent" 2>/dev/null
}

# Stopped from outside: let the agent save. It is given time by whoever stops us, not by us.
on_term() {
    leaving=yes
    if agent_lives; then
        kill -TERM "$agent" 2>/dev/null || :
    fi
}

run_agent() {
    agent_since=$(date +%s)
    sh "$home/agent.sh" </dev/null >>"$home/log/agent.out" 2>&1 &
    agent=$!
}

bury_agent() {
    wait "$agent" 2>/dev/null
    say "the agent left with code $?"
    agent=''
    now=$(date +%s)
    if [ $((now - agent_since)) -ge 60 ]; then
        back_off=1
    fi
    not_before=$((now + back_off))
    back_off=$((back_off * 2))
    if [ "$back_off" -gt 30 ]; then
        back_off=30
    fi
}

say_farewell() {
    if [ -z "$asked" ]; then
        asked=yes
        say 'this instance is over'
        if [ ! -e "$home/ended" ] && agent_lives; then
            kill -TERM "$agent" 2>/dev/null || :
        fi
    fi
    if [ -n "$farewell" ]; then
        $within sh -c "$farewell" </dev/null >>"$home/log/agent.out" 2>&1 || say "the farewell command left with code $?"
    fi
}

# A marketplace that does not answer must not keep the loop from asking again; farewell.sh is bounded by itself, too.
command -v timeout >/dev/null 2>&1 && within='timeout 120' || within=''

trap on_term TERM INT HUP
set_deadline

while :; do
    if is_over; then
        say_farewell
        if [ -z "$farewell" ] && ! agent_lives; then
            exit 0
        fi
        pause=5
    fi
    if [ -n "$agent" ] && ! agent_lives; then
        bury_agent
    fi
    if [ -n "$leaving" ] && [ -z "$agent" ]; then
        exit 143
    fi
    if ! is_over && [ -z "$agent" ] && [ -s "$home/agent.sh" ] && [ "$(date +%s)" -ge "$not_before" ]; then
        run_agent
    fi
    sleep "$pause"
done
