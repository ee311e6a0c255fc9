// Package migrations is the schema of the usage database, as goose migrations.
package migrations

import (
	"bytes"
	"embed"
	"io/fs"
	"regexp"
)

// Files are the migrations in order. A published one never changes.
//
//go:embed *.sql
var Files embed.FS

// Neutral are the migrations that leave every row what it was. Behind any other the rows have to be made anew from the log.
var Neutral = map[int64]bool{3: true}

// Replicated are the same migrations for a cluster of replicas: each statement goes to all servers of the cluster, and tables are
// replicated by the path that is the default of the servers. They may be done again where they were done already, because the list of what
// was done is on one server.
func Replicated(cluster string) fs.FS { return replicated{cluster} }

var (
	definition = regexp.MustCompile(`(?m)^((?:CREATE (?:DATABASE|TABLE|VIEW)(?: IF NOT EXISTS)?|ALTER TABLE|DROP (?:DATABASE|TABLE|VIEW) IF EXISTS) [a-z_.]+)`)
	always     = regexp.MustCompile(`(?m)^CREATE (TABLE|VIEW) agents`)
	engine     = regexp.MustCompile(`(?m)^ENGINE = ([A-Za-z]*MergeTree)`)
)

// OnCluster is the form of statements for all servers of a cluster.
func OnCluster(text []byte, cluster string) []byte {
	text = always.ReplaceAll(text, []byte("CREATE $1 IF NOT EXISTS agents"))
	text = definition.ReplaceAll(text, []byte("${1} ON CLUSTER '"+cluster+"'"))
	return engine.ReplaceAll(text, []byte("ENGINE = Replicated$1"))
}

type replicated struct{ cluster string }

func (r replicated) Open(name string) (fs.File, error) {
	f, err := Files.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return f, err
	}
	text, err := Files.ReadFile(name)
	if err != nil {
		return nil, err
	}
	text = OnCluster(text, r.cluster)
	return file{File: f, Reader: bytes.NewReader(text), info: sized{info, int64(len(text))}}, nil
}

// ReadDir makes it possible to list the files.
func (r replicated) ReadDir(name string) ([]fs.DirEntry, error) { return Files.ReadDir(name) }

type file struct {
	fs.File
	*bytes.Reader
	info sized
}

func (f file) Read(b []byte) (int, error) { return f.Reader.Read(b) }

func (f file) Stat() (fs.FileInfo, error) { return f.info, nil }

type sized struct {
	fs.FileInfo
	size int64
}

func (s sized) Size() int64 { return s.size }
