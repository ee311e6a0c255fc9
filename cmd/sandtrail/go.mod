module github.com/sandtrail/sandtrail/cmd/sandtrail

go 1.26.3

replace (
	github.com/sandtrail/sandtrail/libs => ../../libs
	github.com/sandtrail/sandtrail/proto => ../../proto
	github.com/sandtrail/sandtrail/services/exec => ../../services/exec
	github.com/sandtrail/sandtrail/services/gateway => ../../services/gateway
	github.com/sandtrail/sandtrail/services/gc => ../../services/gc
	github.com/sandtrail/sandtrail/services/lifecycle => ../../services/lifecycle
	github.com/sandtrail/sandtrail/services/usage => ../../services/usage
	github.com/sandtrail/sandtrail/toolbox => ../../toolbox
)

require (
	github.com/sandtrail/sandtrail/libs v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/proto v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/services/exec v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/services/gateway v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/services/gc v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/services/lifecycle v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/services/usage v0.0.0-00010101000000-000000000000
	github.com/sandtrail/sandtrail/toolbox v0.0.0-00010101000000-000000000000
)

require (
	github.com/alecthomas/kong v1.17.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/term v0.47.0 // indirect
)
