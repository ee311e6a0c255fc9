module github.com/sandtrail/sandtrail/services/lifecycle

go 1.26.3

replace (
	github.com/sandtrail/sandtrail/libs => ../../libs
	github.com/sandtrail/sandtrail/proto => ../../proto
	github.com/sandtrail/sandtrail/toolbox => ../../toolbox
)

require (
	github.com/sandtrail/sandtrail/libs v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/proto v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/toolbox v0.0.0-00010101000000-000000000000
)

require (
	github.com/google/go-containerregistry v0.22.1 // indirect
	github.com/stretchr/testify v1.12.1 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
)
