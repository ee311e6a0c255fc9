// Package migrations is the schema of the usage database, as goose migrations.
package migrations

import "embed"

// Files are the migrations in order. A published one never changes.
//
//go:embed *.sql
var Files embed.FS
