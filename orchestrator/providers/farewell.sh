# sh farewell.sh end    asks the marketplace to destroy this instance; 0 when it will, or when there is none any more
# sh farewell.sh look   asks whether this instance is there; 0 when the instance's own key can see it
# The key is never an argument: other users of the machine can read those.
{ read -r id && read -r key; } 2>/dev/null <"$(dirname "$0")/instance.env" || exit 3
ask() {
    if command -v curl >/dev/null; then
        printf 'header = "Authorization: Bearer %s"\n' "$key" |
            curl -sS -o /dev/null -w '%{http_code}' -m 30 -K - -A spot-tune -H 'Content-Type: application/json' \
                -X "$1" ${3:+-d "$3"} "$2"
        return
    fi
    command -v python3 >/dev/null && python=python3 || python=python
    printf '%s' "$key" | $python -c '
import sys
from urllib.request import Request, urlopen
method, url, body = sys.argv[1:]
head = {"Authorization": "Bearer " + sys.stdin.read(), "User-Agent": "spot-tune", "Content-Type": "application/json"}
try:
    print(urlopen(Request(url, body.encode() or None, head, method=method), timeout=30).status)
except Exception as e:
    print(getattr(e, "code", e))
' "$1" "$2" "${3:-}"
}
case $1 in
look) case $(ask GET "$url") in 2??) exit 0 ;; esac ;;
end)
    case $(ask DELETE "$url") in 2?? | 404) exit 0 ;; esac
    [ -n "$fallback_url" ] && case $(ask POST "$fallback_url" "$fallback_body") in 2??) exit 0 ;; esac
    ;;
esac
exit 1
