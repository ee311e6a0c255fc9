package figure

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/transcript"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	mega = 1e6
	// block is one write of the program and one message of the baseline.
	block = 64 << 10
	// slice is what one sample of the rate is taken over.
	slice = 32 << 20
	// outputRounds of 1 GiB each, by each way: 64 slices.
	outputRounds = 2
)

// program writes so many blocks, each in one write (a pipe may take less, then the rest in another): its number in 8 bytes and
// then bytes that do not compress.
const program = `import os,sys,hashlib
b=bytearray(b''.join(hashlib.sha256(i.to_bytes(8,'big')).digest() for i in range(2048)))
for i in range(int(sys.argv[1])):
    b[:8]=i.to_bytes(8,'big')
    n=os.write(1,b)
    while n<len(b): n+=os.write(1,b[n:])
`

// blocks gives the same bytes.
type blocks struct{ b []byte }

func newBlocks() *blocks {
	var b bytes.Buffer
	for i := range block / sha256.Size {
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
		b.Write(sum[:])
	}
	return &blocks{b.Bytes()}
}

// number is block i; the next call overwrites it.
func (b *blocks) number(i int) []byte {
	binary.BigEndian.PutUint64(b.b, uint64(i))
	return b.b
}

// at reports whether data is what stands in the output from an offset on. It compares, since hashing would take a tenth of the
// CPU that is being measured.
func (b *blocks) at(offset int, data []byte) bool {
	for len(data) > 0 {
		want := b.number(offset / block)[offset%block:]
		n := min(len(want), len(data))
		if !bytes.Equal(want[:n], data[:n]) {
			return false
		}
		offset, data = offset+n, data[n:]
	}
	return true
}

// output has one exec write a GiB, through gRPC and into OUT, in turn with raw publishes of the same bytes to a stream of the
// same settings, and with the same program under `runsc exec`.
func output(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, box, remove, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(&err)
	count, rounds := b.count((1<<30)/block), outputRounds
	if b.Quick {
		rounds = 1
	}
	want := sha256.New()
	for i, bl := 0, newBlocks(); i < count; i++ {
		want.Write(bl.number(i))
	}
	sum, total := want.Sum(nil), count*block
	var ours, theirs, piped sample.Values
	var whole, peakUp, peakKeeper, null sample.Values
	var spent budget
	for round := range rounds {
		b.say("output: %d MiB through gRPC, raw and by runsc exec, round %d of %d", total>>20, round+1, rounds)
		for _, pid := range []int{up.PID, box.Keeper} {
			if err := live.ResetPeak(pid); err != nil {
				return nil, err
			}
		}
		begin := spend(up, box)
		rates, took, res, err := outputOnce(ctx, up, box, count, sum)
		if err != nil {
			return nil, fmt.Errorf("through gRPC: %w", err)
		}
		spent.add(begin, spend(up, box), total)
		ours = append(ours, rates...)
		whole.Add(float64(total) / mega / took.Seconds())
		for pid, peak := range map[int]*sample.Values{up.PID: &peakUp, box.Keeper: &peakKeeper} {
			mb, err := live.Peak(pid)
			if err != nil {
				return nil, err
			}
			peak.Add(mb)
		}
		if round == 0 {
			if err := stored(ctx, up, box, res.ID, total, sum); err != nil {
				return nil, err
			}
		}
		begin = spend(up, box)
		rates, err = rawOutput(ctx, count)
		if err != nil {
			return nil, fmt.Errorf("raw publish: %w", err)
		}
		spent.raw.Add(float64(spend(up, box).self-begin.self) / float64(total))
		theirs = append(theirs, rates...)
		rates, err = runscOutput(box, count, total)
		if err != nil {
			return nil, fmt.Errorf("runsc exec: %w", err)
		}
		piped = append(piped, rates...)
		mbs, err := runscNull(box, count, total)
		if err != nil {
			return nil, fmt.Errorf("runsc exec to /dev/null: %w", err)
		}
		null.Add(mbs)
	}
	name := fmt.Sprintf("output of %d MiB in 64 KiB writes, through gRPC and into OUT", total>>20)
	return []report.Row{
		{
			Name: name, Unit: "MB/s", Ours: ours.Median(), Baseline: theirs.Median(), Against: "nats.go publishing the same 64 KiB chunks to a stream of the same settings", Samples: len(ours),
			Target: report.RatioAtLeast(0.6), Note: fmt.Sprintf("Slices of 32 MiB of %d transfers each; whole transfers %.0f MB/s. Every byte is compared at the client, and length and SHA-256 in the receipt and of what stands in OUT. The baseline publishes asynchronously with at most 256 messages unacknowledged. %s", rounds, whole.Median(), &spent),
		},
		{
			Name: "the same beside `runsc exec`", Unit: "MB/s", Ours: ours.Median(), Baseline: piped.Median(), Against: "`runsc exec` of the same program, its pipe read by us", Samples: len(piped),
			Note: fmt.Sprintf("Nothing is stored or hashed there. With /dev/null as its output: %.0f MB/s.", null.Median()),
		},
		{Name: "peak memory of `up` during it", Unit: "MB", Ours: peakUp.Max(), Baseline: report.None, Target: report.AtMost(300), Note: "The highest resident size of the process that runs NATS and all services, ClickHouse not included."},
		{Name: "peak memory of the keeper during it", Unit: "MB", Ours: peakKeeper.Max(), Baseline: report.None, Target: report.AtMost(300)},
	}, nil
}

// spending is the processor time of each part until now; self is this process: the client, or both sides of the baseline.
type spending struct{ up, keeper, sandbox, self time.Duration }

func spend(up *live.Up, box *live.Sandbox) spending {
	return spending{live.CPU(up.PID), live.CPU(box.Keeper), live.CPU(live.Tree(box.Sentry)...), live.CPU(os.Getpid())}
}

// budget is nanoseconds of processor time for each byte of output.
type budget struct{ up, keeper, sandbox, client, raw sample.Values }

func (b *budget) add(from, to spending, bytes int) {
	n := float64(bytes)
	b.up.Add(float64(to.up-from.up) / n)
	b.keeper.Add(float64(to.keeper-from.keeper) / n)
	b.sandbox.Add(float64(to.sandbox-from.sandbox) / n)
	b.client.Add(float64(to.self-from.self) / n)
}

func (b *budget) String() string {
	return fmt.Sprintf("Processor time for a byte: `up` %.1f, keeper %.1f, sandbox %.1f, client %.1f ns; baseline %.1f ns.",
		b.up.Median(), b.keeper.Median(), b.sandbox.Median(), b.client.Median(), b.raw.Median())
}

// outputOnce is one transfer through gRPC.
func outputOnce(ctx context.Context, up *live.Up, box *live.Sandbox, count int, sum []byte) (sample.Values, time.Duration, live.Result, error) {
	bl, length := newBlocks(), 0
	begin := time.Now()
	slices := sample.NewSlices(slice / mega)
	res, err := up.Exec(ctx, box.ID, func(data []byte) error {
		if !bl.at(length, data) {
			return fmt.Errorf("the %d bytes at %d are others", len(data), length)
		}
		length += len(data)
		slices.Mark(float64(length) / mega)
		return nil
	}, "python3", "-c", program, strconv.Itoa(count))
	took := time.Since(begin)
	if err != nil {
		return nil, 0, res, err
	}
	if length != count*block {
		return nil, 0, res, fmt.Errorf("the client has %d bytes of %d", length, count*block)
	}
	out := res.Completed.GetStdout()
	if out.GetBytes() != uint64(length) || out.GetDroppedBytes() != 0 || !bytes.Equal(out.GetSha256(), sum) {
		return nil, 0, res, fmt.Errorf("the receipt has %d bytes, %d dropped, or another digest", out.GetBytes(), out.GetDroppedBytes())
	}
	return slices.Rates(), took, res, nil
}

// stored reads the transcript back from OUT.
func stored(ctx context.Context, up *live.Up, box *live.Sandbox, id string, total int, sum []byte) error {
	got, length := sha256.New(), 0
	err := transcript.Read(ctx, up.JS, subject.Output(live.Tenant, box.ID, id), 1, func(c transcript.Chunk) error {
		if c.GapTo > 0 || c.Offset != uint64(length) {
			return fmt.Errorf("chunk %d at offset %d stands behind %d bytes", c.Number, c.Offset, length)
		}
		length += len(c.Data)
		got.Write(c.Data)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read OUT: %w", err)
	}
	return same("OUT", got, length, total, sum)
}

func same(where string, got hash.Hash, length, total int, sum []byte) error {
	if length != total || !bytes.Equal(got.Sum(nil), sum) {
		return fmt.Errorf("%s has %d bytes of %d, or others", where, length, total)
	}
	return nil
}

// runscOutput reads the program's output from the pipe of `runsc exec`.
func runscOutput(box *live.Sandbox, count, total int) (rates sample.Values, err error) {
	argv, err := box.RunscExec("/usr/bin/python3", "-c", program, strconv.Itoa(count))
	if err != nil {
		return nil, err
	}
	err = box.Inside(func() error {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = "/"
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		slices, length, buf := sample.NewSlices(slice/mega), 0, make([]byte, 256<<10)
		for {
			n, err := out.Read(buf)
			length += n
			slices.Mark(float64(length) / mega)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		rates = slices.Rates()
		if length != total {
			return fmt.Errorf("%d bytes of %d", length, total)
		}
		return cmd.Wait()
	})
	return rates, err
}

// runscNull is the rate in MB/s where nobody reads.
func runscNull(box *live.Sandbox, count, total int) (rate float64, err error) {
	argv, err := box.RunscExec("/usr/bin/python3", "-c", program, strconv.Itoa(count))
	if err != nil {
		return 0, err
	}
	err = box.Inside(func() error {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = "/"
		begin := time.Now()
		err := cmd.Run()
		rate = float64(total) / mega / time.Since(begin).Seconds()
		return err
	})
	return rate, err
}
