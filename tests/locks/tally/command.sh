# A command under with-lock that does what program.py's `work` does: command.sh KIND TENTHS
# `deep`: one that it has started goes on without an end, and heeds no signal that it can ignore.
say() { echo "$ONEDROP_LOCK_SLOT $ONEDROP_LOCK_EPOCH $1" >>journal; }
exec 9>>"slot.$ONEDROP_LOCK_SLOT"
flock -n 9 || { say twice; echo twice; exit 9; }
say began
echo began
if [ "$1" = deep ]; then
    (trap '' TERM INT HUP; while :; do say deep; sleep 0.02; done) >/dev/null &
fi
left=$2
while [ "$left" -gt 0 ]; do
    say work
    sleep 0.01 9>&-
    left=$((left - 1))
done
echo ok
