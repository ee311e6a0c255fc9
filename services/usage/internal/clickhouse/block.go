package clickhouse

import (
	"slices"
)

// Block is rows in the form in which they are sent: by columns. The zero value is empty. Not for concurrent use.
type Block struct {
	columns []values
	n       int
}

// Rows is a block of rows.
func Rows(rows ...Row) *Block {
	b := &Block{}
	for i := range rows {
		b.Add(&rows[i])
	}
	return b
}

// Add puts a row behind the others. It keeps nothing of r but texts.
func (b *Block) Add(r *Row) {
	b.Grow(0)
	for _, v := range b.columns {
		v.add(r)
	}
	b.n++
}

// Grow makes room for n more rows.
func (b *Block) Grow(n int) {
	if b.columns == nil {
		b.columns = make([]values, len(columns))
		for i, c := range columns {
			b.columns[i] = c.make()
		}
	}
	if n == 0 {
		return
	}
	for _, v := range b.columns {
		v.grow(n)
	}
}

// Len is the number of rows; of no block at all too.
func (b *Block) Len() int {
	if b == nil {
		return 0
	}
	return b.n
}

// Row is the i-th row.
func (b *Block) Row(i int) Row {
	var r Row
	for _, v := range b.columns {
		v.read(i, &r)
	}
	return r
}

// Reset empties the block and keeps its memory.
func (b *Block) Reset() {
	for _, v := range b.columns {
		v.reset()
	}
	b.n = 0
}

// values are those of one column.
type values interface {
	add(r *Row)
	read(i int, r *Row)
	grow(n int)
	reset()
	// all is what the client takes for the column.
	all() any
}

// plain is a column whose type the client takes as it is.
type plain[T any] struct {
	of func(*Row) *T
	v  []T
}

func pick[T any](name string, of func(*Row) *T) column {
	return column{name, func() values { return &plain[T]{of: of} }}
}

func (p *plain[T]) add(r *Row)         { p.v = append(p.v, *p.of(r)) }
func (p *plain[T]) read(i int, r *Row) { *p.of(r) = p.v[i] }
func (p *plain[T]) grow(n int)         { p.v = slices.Grow(p.v, n) }
func (p *plain[T]) all() any           { return p.v }

func (p *plain[T]) reset() {
	clear(p.v)
	p.v = p.v[:0]
}

// boxesKept bounds the different texts that a column remembers from one use to the next.
const boxesKept = 1024

// words is a column of few different texts. The client would box each of them by itself; here each is boxed once.
type words struct {
	of    func(*Row) *string
	v     []any
	boxes map[string]any
	last  string
	box   any
}

func few(name string, of func(*Row) *string) column {
	return column{name, func() values { return &words{of: of, boxes: map[string]any{}} }}
}

func (w *words) add(r *Row) {
	if s := *w.of(r); w.box == nil || s != w.last {
		w.last, w.box = s, w.boxes[s]
		if w.box == nil {
			w.box = s
			w.boxes[s] = w.box
		}
	}
	w.v = append(w.v, w.box)
}

func (w *words) read(i int, r *Row) { *w.of(r), _ = w.v[i].(string) }
func (w *words) grow(n int)         { w.v = slices.Grow(w.v, n) }
func (w *words) all() any           { return w.v }

func (w *words) reset() {
	clear(w.v)
	w.v = w.v[:0]
	if len(w.boxes) > boxesKept {
		clear(w.boxes)
		w.last, w.box = "", nil
	}
}
