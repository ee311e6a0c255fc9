package cli

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// Completion is `sandtrail completion`.
type Completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Your shell: ${enum}."`
}

// The scripts ask this program for the words that may stand at the cursor, one a line; without any the shell completes files.
var scripts = map[string]string{
	// bash takes --output=js as three words.
	"bash": `_sandtrail() {
	local IFS=$'\n' words=("${COMP_WORDS[@]:1:COMP_CWORD}")
	if [[ ${COMP_WORDS[COMP_CWORD]} == = ]]; then
		words+=("")
	fi
	COMPREPLY=($("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null))
}
complete -o default -F _sandtrail sandtrail sandrpod-cli
`,
	// zsh runs it as a file of fpath, whose first run is the first completion, or sourced, perhaps before any completion is set up.
	"zsh": `#compdef sandtrail sandrpod-cli
_sandtrail() {
	local -a found
	found=("${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	found=(${found:#})
	if (( ${#found} )); then
		compadd -- "${found[@]}"
	else
		_files
	fi
}
if [[ ${funcstack[1]} == _sandtrail ]]; then
	_sandtrail "$@"
else
	(( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit; }
	compdef _sandtrail sandtrail sandrpod-cli
fi
`,
	"fish": `function __sandtrail_complete
	set -l words (commandline -opc) (commandline -ct)
	set -l found ($words[1] __complete -- $words[2..-1] 2>/dev/null)
	if test (count $found) -gt 0
		printf '%s\n' $found
	else
		__fish_complete_path (commandline -ct)
	end
end
complete -c sandtrail -f -a '(__sandtrail_complete)'
complete -c sandrpod-cli -f -a '(__sandtrail_complete)'
`,
}

// Help is printed below the flags.
func (c *Completion) Help() string {
	return "bash: source <(sandtrail completion bash)   zsh: source <(sandtrail completion zsh)   fish: sandtrail completion fish | source"
}

// Run prints the script.
func (c *Completion) Run(e *Env) error {
	_, err := fmt.Fprint(e.Stdout, scripts[c.Shell])
	return err
}

// Complete is what the scripts call: the words so far, the last one being typed.
type Complete struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

// Run prints what may stand there.
func (c *Complete) Run(e *Env, k *kong.Kong) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	for _, w := range candidates(k.Model.Node, words, liveNames) {
		if _, err := fmt.Fprintln(e.Stdout, w); err != nil {
			return err
		}
	}
	return nil
}

// candidates walks the commands that the words name and gives what fits the last word: values of a flag in front of it, flags,
// sub-commands, or values of an argument. Behind -- a command of somebody else stands.
func candidates(node *kong.Node, words []string, live func() []string) []string {
	typed, before := words[len(words)-1], words[:len(words)-1]
	var open *kong.Flag
	position := 0
	for _, w := range before {
		switch {
		case open != nil && w == "=":
		case open != nil:
			open = nil
		case w == "--":
			return nil
		case strings.HasPrefix(w, "-"):
			if f := flagOf(node, w); f != nil && !f.IsBool() && !strings.Contains(w, "=") {
				open = f
			}
		default:
			if i := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == w }); i >= 0 {
				node, position = node.Children[i], 0
			} else {
				position++
			}
		}
	}
	var all []string
	switch {
	case open != nil:
		all = enum(open.Value)
	case strings.HasPrefix(typed, "-") && strings.Contains(typed, "="):
		if f := flagOf(node, typed); f != nil {
			name, _, _ := strings.Cut(typed, "=")
			for _, v := range enum(f.Value) {
				all = append(all, name+"="+v)
			}
		}
	case strings.HasPrefix(typed, "-"):
		for _, f := range flags(node) {
			all = append(all, "--"+f.Name)
		}
	case len(node.Children) > 0:
		for _, n := range node.Children {
			if !n.Hidden {
				all = append(all, n.Name)
			}
		}
	case len(node.Positional) > 0:
		last := min(position, len(node.Positional)-1)
		v := node.Positional[last]
		if position > last && !v.IsSlice() {
			break
		}
		if all = enum(v); v.Tag.Get("complete") == "sandbox" {
			all = live()
		}
	}
	all = slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, typed) })
	slices.Sort(all)
	return slices.Compact(all)
}

// completionWait is how long completion waits for the names that there are: somebody has a finger on the key.
const completionWait = time.Second

// liveNames are the names of the sandboxes that there are, none where the server does not say them at once.
func liveNames() []string {
	var r Remote
	api, err := r.server()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionWait)
	defer cancel()
	var all struct{ Sandboxes []struct{ Name string } }
	if api.JSON(ctx, http.MethodGet, "/api/v1/sandboxes", nil, nil, &all) != nil {
		return nil
	}
	var names []string
	for _, s := range all.Sandboxes {
		names = append(names, render.Clean(s.Name))
	}
	return names
}

func flags(node *kong.Node) []*kong.Flag {
	return slices.DeleteFunc(slices.Concat(node.AllFlags(false)...), func(f *kong.Flag) bool { return f.Hidden })
}

func flagOf(node *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(word, "=")
	for _, f := range flags(node) {
		if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

func enum(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}
