package audit

import (
	"crypto/sha256"
	"fmt"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
)

// children hashes two nodes as rfc6962.DefaultHasher does, for a third of its garbage: it runs once for each event.
func children(left, right []byte) []byte {
	var b [1 + 2*sha256.Size]byte
	b[0] = rfc6962.RFC6962NodeHashPrefix
	sum := sha256.Sum256(append(append(b[:1], left...), right...))
	return sum[:]
}

// hasher is the tree's as package proof wants it.
type hasher struct{ *rfc6962.Hasher }

func (hasher) HashChildren(left, right []byte) []byte { return children(left, right) }

var ranges = compact.RangeFactory{Hash: children}

// tree is a Merkle tree that only grows: the roots of its perfect subtrees, at most 64.
type tree struct{ r *compact.Range }

func newTree() *tree { return &tree{ranges.NewEmptyRange(0)} }

// treeOf continues a tree of so many leaves from the roots of its perfect subtrees.
func treeOf(size uint64, hashes [][]byte) (*tree, error) {
	own := make([][]byte, len(hashes), len(hashes)+1)
	for i, h := range hashes {
		if len(h) != sha256.Size {
			return nil, fmt.Errorf("hash %d of the tree has %d bytes, needs %d", i, len(h), sha256.Size)
		}
		own[i] = append([]byte(nil), h...)
	}
	r, err := ranges.NewRange(0, size, own)
	if err != nil {
		return nil, fmt.Errorf("tree of %d leaves: %w", size, err)
	}
	return &tree{r}, nil
}

func (t *tree) size() uint64 { return t.r.End() }

// add appends a leaf; visit, if not nil, is told of each node that is complete with it.
func (t *tree) add(leaf []byte, visit compact.VisitFn) {
	// It fails only for a range that was put together wrongly, which treeOf refuses.
	if err := t.r.Append(leaf, visit); err != nil {
		panic(fmt.Sprintf("audit: append to a tree of %d leaves: %v", t.size(), err))
	}
}

// root of the tree; of an empty one the hash of nothing.
func (t *tree) root() []byte {
	root, err := t.r.GetRootHash(nil)
	if err != nil {
		panic(fmt.Sprintf("audit: root of a tree of %d leaves: %v", t.size(), err))
	}
	if root == nil {
		return rfc6962.DefaultHasher.EmptyRoot()
	}
	return root
}

// hashes are a copy of the roots of its perfect subtrees.
func (t *tree) hashes() [][]byte { return append([][]byte(nil), t.r.Hashes()...) }
