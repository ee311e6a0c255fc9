module github.com/sandtrail/sandtrail/toolbox

go 1.26.3

replace github.com/sandtrail/sandtrail/proto => ../proto

require (
	github.com/sandtrail/sandtrail/proto v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.48.0
	google.golang.org/protobuf v1.36.12
	pgregory.net/rapid v1.3.0
)

require (
	buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go v1.36.12-20260825204119-511051f7f437.1 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
