module github.com/sandtrail/sandtrail/toolbox

go 1.26.3

replace github.com/sandtrail/sandtrail/proto => ../proto

require github.com/sandtrail/sandtrail/proto v0.0.0-00010101000000-000000000000

require (
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/sys v0.48.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
