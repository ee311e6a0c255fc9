// Package render writes answers: tables and words for people, JSON for programs. Whatever comes from a server is cleaned of
// control characters before a person sees it.
package render

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Terminal reports whether w is a terminal.
func Terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colour reports whether to colour what goes to w: a terminal, and NO_COLOR is not set.
func Colour(w any) bool { return os.Getenv("NO_COLOR") == "" && Terminal(w) }

// Clean makes text from a server safe to show: control characters, which a terminal may obey, become `?`.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || unicode.Is(unicode.Bidi_Control, r) {
			return '?'
		}
		return r
	}, s)
}

// Table has one row of cells a line; an empty cell is shown as -.
type Table struct {
	Header []string
	Rows   [][]string
	// Paint gives the ANSI code of a cell in a column, "" for none; nil for a table without colour.
	Paint func(column int, cell string) string
}

// Write aligns the columns, two spaces apart.
func (t Table) Write(w io.Writer) error {
	width := make([]int, len(t.Header))
	rows := append([][]string{t.Header}, t.Rows...)
	for _, row := range rows {
		for i := range row {
			row[i] = Clean(row[i])
			if row[i] == "" {
				row[i] = "-"
			}
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
			if i == len(row)-1 {
				pad = ""
			}
			if code := t.paint(n, i, cell); code != "" {
				cell = "\x1b[" + code + "m" + cell + "\x1b[0m"
			}
			b.WriteString(cell + pad)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t Table) paint(row, column int, cell string) string {
	if row == 0 || t.Paint == nil {
		return ""
	}
	return t.Paint(column, cell)
}

// Field is one line of a description.
type Field struct{ Name, Value string }

// Fields writes names and values in two columns; fields without a value are left out.
func Fields(w io.Writer, fields []Field) error {
	width := 0
	for _, f := range fields {
		if f.Value != "" {
			width = max(width, len(f.Name))
		}
	}
	for _, f := range fields {
		if f.Value == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-*s  %s\n", width, f.Name, Clean(f.Value)); err != nil {
			return err
		}
	}
	return nil
}
