package jslog_test

import (
	"testing"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/eventlogtest"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/natstest"
)

func TestContractOnOneServer(t *testing.T) {
	f := natstest.Start(t)
	eventlogtest.Run(t, func(testing.TB) eventlog.Log { return jslog.New(f.JS) })
}

func TestContractOnACluster(t *testing.T) {
	f := natstest.Cluster(t)
	eventlogtest.Run(t, func(testing.TB) eventlog.Log { return jslog.New(f.JS) })
}
