// Package manual writes what a program's parser knows of its commands as pages.
package manual

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/cpuguy83/go-md2man/v2/md2man"
)

const head = `<!-- Made by ` + "`make reference`" + `. Change the commands, not this page. -->
# Commands

`

// Markdown is the page docs/reference/commands.md. codes is the part of the program's description that explains its exit codes.
func Markdown(app *kong.Application, codes string) string { return head + write(app, codes, table) }

// Man is the same as a page for man(1).
func Man(app *kong.Application, codes string) []byte {
	return md2man.Render([]byte("% SANDTRAIL 1\n\n# NAME\n\nsandtrail - run the code of agents in isolated sandboxes\n\n# DESCRIPTION\n\n" + write(app, codes, terms)))
}

// write writes the page; list says how arguments and flags stand in it.
func write(app *kong.Application, codes string, list lister) string {
	m := page{codes: codes, list: list, shared: map[string][]row{}}
	first, last, _ := strings.Cut(app.Help, codes)
	m.WriteString(strings.TrimSpace(first) + "\n\n```\n" + strings.TrimSpace(codes+last) + "\n```\n")
	group := ""
	for _, n := range app.Children {
		if n.Hidden {
			continue
		}
		if n.Group != nil && n.Group.Title != group {
			group = n.Group.Title
			fmt.Fprintf(&m, "\n## %s\n", group)
		}
		m.section(n)
	}
	m.WriteString("\n## Flags that commands share\n")
	for _, name := range m.groups {
		fmt.Fprintf(&m, "\n### %s\n\n%s", name, m.list(m.shared[name]))
	}
	return m.String()
}

// sharedGroups are the groups of flags by which many commands reach what they need.
var sharedGroups = []string{"The server", "The log", "The rows"}

// page is what was written, and what commands have in common, which stands once, at the end.
type page struct {
	strings.Builder
	codes  string
	list   lister
	groups []string
	shared map[string][]row
}

// row is an argument or a flag, in code, and what it is for.
type row struct{ name, help string }

type lister func([]row) string

// table is for a page that is looked through, terms for a terminal, whose width tables do not keep to.
func table(rows []row) string {
	var b strings.Builder
	b.WriteString("| | |\n|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |\n", escaped.Replace(r.name), escaped.Replace(r.help))
	}
	return b.String()
}

func terms(rows []row) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "%s\n:   %s\n\n", r.name, strings.ReplaceAll(r.help, "\n", " "))
	}
	return b.String()
}

// section writes a command, or those below it.
func (m *page) section(n *kong.Node) {
	below := 0
	for _, c := range n.Children {
		if !c.Hidden {
			m.section(c)
			below++
		}
	}
	if below > 0 {
		return
	}
	fmt.Fprintf(m, "\n### `%s`\n\n%s\n", n.FullPath(), prose(n.Help))
	if len(n.Aliases) > 0 {
		fmt.Fprintf(m, "\nAlso: `%s`.\n", strings.Join(n.Aliases, "`, `"))
	}
	// The exit codes stand once, at the beginning.
	if detail := strings.TrimSpace(strings.ReplaceAll(n.Detail, m.codes, "")); detail != "" {
		m.WriteString("\n" + detail + "\n")
	}
	var rows []row
	var groups []string
	for _, a := range n.Positional {
		rows = append(rows, row{"`" + a.Summary() + "`", prose(a.Help)})
	}
	for _, f := range flagsOf(n) {
		one := row{flagName(f), prose(f.Help) + variables(f)}
		if f.Group == nil || !slices.Contains(sharedGroups, f.Group.Title) {
			rows = append(rows, one)
			continue
		}
		if !slices.Contains(groups, f.Group.Title) {
			groups = append(groups, f.Group.Title)
		}
		m.share(f.Group.Title, one)
	}
	if len(rows) > 0 {
		m.WriteString("\n" + m.list(rows))
	}
	for i, g := range groups {
		groups[i] = fmt.Sprintf("[%s](#%s)", strings.ToLower(g[:1])+g[1:], strings.ReplaceAll(strings.ToLower(g), " ", "-"))
	}
	if len(groups) > 0 {
		fmt.Fprintf(m, "\nAnd the flags of %s.\n", strings.Join(groups, " and "))
	}
}

func (m *page) share(group string, one row) {
	if _, had := m.shared[group]; !had {
		m.groups = append(m.groups, group)
	}
	if !slices.Contains(m.shared[group], one) {
		m.shared[group] = append(m.shared[group], one)
	}
}

// flagsOf are the flags that a command has beside --help.
func flagsOf(n *kong.Node) (all []*kong.Flag) {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if f.Name != "help" {
				all = append(all, f)
			}
		}
	}
	return all
}

func flagName(f *kong.Flag) string {
	name := "`--" + f.Name
	if !f.IsBool() {
		name += "=" + f.FormatPlaceHolder()
	}
	name += "`"
	if f.Short != 0 {
		name = "`-" + string(f.Short) + "`, " + name
	}
	return name
}

func variables(f *kong.Flag) string {
	if len(f.Envs) == 0 {
		return ""
	}
	return " (`" + strings.Join(f.Envs, "`, `") + "`)"
}

// escaped is what a row of a table cannot have as it is, in code too.
var escaped = strings.NewReplacer("|", "\\|", "\n", " ")

// prose is text in which nothing is taken for HTML.
func prose(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "<", "&lt;") }
