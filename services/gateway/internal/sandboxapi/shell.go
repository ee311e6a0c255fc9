package sandboxapi

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/services/gateway/internal/talk"
)

// The shell of a session reads what it is to do as a script, line by line, from its standard input. It is an interactive one, on no terminal:
// only such a one can be interrupted and goes on.

// shellProgram starts it: bash where the image has it. Nobody's profile is read.
const shellProgram = "command -v bash >/dev/null 2>&1 && exec bash --noprofile --norc --noediting -i; exec sh -i"

// shellPrelude is what it reads first. A question is three lines, see shellQuestion:
//   - `ask` decodes the command into st_run, opens the answer on both streams and makes the alias that the next line is.
//   - the alias evaluates it once, in the shell itself, with $? as the command before left it: what it changes stays. Whatever it does with its standard streams, or 8 and 9, ends with it, so
//     no command can take away what the answer is framed on, or read the lines behind it. `command` has a shell go on behind a command that cannot
//     be parsed.
//   - `told` closes the answer: status, process id of the shell, directory. `there` is an answer of nothing but that, for who wants to know
//     whether the shell is at something else.
//
// A line is nothing without its first word, see package talk. No quotes are in it, because half of one would take in the lines behind; an empty
// line is before it, because a backslash may be the last that came of another one.
const shellPrelude = `exec 8>&1 9>&2
st_was=0 PS1= PS2=
if [ -n "${BASH_VERSION-}" ]; then set +o history; set +H; unset HISTFILE; fi
__sandtrail_was() {
case $- in *e*) return 0 ;; esac
return "$st_was"
} 2>/dev/null
__sandtrail_opens() {
command printf '\036%s[' "$1" >&8
command printf '\036%s[' "$1" >&9
}
__sandtrail_shuts() {
command printf '\036%s]\n' "$1" >&9
command printf '\036%s]%d %s %s\n' "$1" "$st_was" "$$" "$PWD" >&8
return 0
}
__sandtrail() {
st_rc=$?
case $1 in
ask)
st_run= PS1= PS2=
[ "$#" -eq 4 ] && [ "$2" = "$4" ] || return 0
if [ -n "${BASH_VERSION-}" ]; then builtin printf -v st_run %b "$3"; else st_run=$(command printf '%b.' "$3"); st_run=${st_run%.}; fi
alias st_eval_0='{ st_now=$st_run st_run=; __sandtrail_was; command eval "$st_now" 8>&- 9>&-; } </dev/null >&8 2>&9'
__sandtrail_opens "$2" ;;
told)
st_run= st_was=$st_rc
[ "$#" -eq 3 ] && [ "$2" = "$3" ] || return 0
__sandtrail_shuts "$2" ;;
there)
[ "$#" -eq 3 ] && [ "$2" = "$3" ] || return 0
__sandtrail_opens "$2"
__sandtrail_shuts "$2" ;;
esac
} 2>/dev/null
`

// shellQuestion is the text of a question that has the shell run a command without zero bytes.
func shellQuestion(token, command string) string {
	return "\n__sandtrail ask " + token + " " + shellWord(command) + " " + token + "\nst_eval_0\n__sandtrail told " + token + " " + token
}

// shellProbe is the text of a question that changes nothing.
func shellProbe(token string) string { return "\n__sandtrail there " + token + " " + token }

// shellWord is a text as one word without quotes, that printf's %b makes the text of again. Its end is none that a program has in its name.
func shellWord(s string) string {
	var b strings.Builder
	for _, c := range []byte(s + "\n") {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '/' || c == '.' || c == '-' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, `\\0%03o`, c)
	}
	return b.String()
}

// shellState is what the shell says of itself behind an answer.
type shellState struct {
	code int32
	pid  int
	cwd  string
}

// shellSaid reads it; false for what the shell did not say.
func shellSaid(a talk.Answer) (shellState, bool) {
	code, rest, _ := strings.Cut(a.Said, " ")
	pid, cwd, ok := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(code, 10, 32)
	p, perr := strconv.Atoi(pid)
	return shellState{code: int32(n), pid: p, cwd: cwd}, ok && err == nil && perr == nil && p > 1
}

// force is how what a shell is at is ended.
type force string

const (
	// first interrupts the shell and all that descends from it, as a terminal does; commands in the background do not hear that.
	first force = "first"
	// last kills what descends from it, commands in the background too.
	last force = "last"
)

// interruptScript ends what a shell is at: its arguments are the process id of the shell, and the force.
const interruptScript = `shell=$1 how=$2 all= tree=" $1 " more=1
for f in /proc/[0-9]*/stat; do
  line=; read -r line 2>/dev/null <"$f" || continue
  f=${f#/proc/}; set -f; set -- ${line##*) }; set +f; all="$all ${f%/stat}:$2"
done
while [ $more = 1 ]; do
  more=0
  for e in $all; do
    case $tree in *" ${e%:*} "*) continue ;; esac
    case $tree in *" ${e#*:} "*) tree="$tree${e%:*} " more=1 ;; esac
  done
done
[ "$how" = last ] && kill -s KILL ${tree#" $shell "}
[ "$how" = last ] && tree=$shell
kill -s INT $tree
exit 0`
