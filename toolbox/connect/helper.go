package connect

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// Main carries connections until its standard input ends. It is the whole of a process.
func Main() int {
	// The programs of the sandbox shall have the memory and the threads.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	serve(os.Stdin, os.Stdout, &Door{})
	return 0
}

// helper is the guest's end.
type helper struct {
	mu  sync.Mutex
	out io.Writer
	// peers are touched by serve alone.
	peers map[uint32]*peer
	door  *Door
}

// peer is one connection. Each channel has room for what a keeper may have sent: it waits for an answer before it sends another.
type peer struct {
	id    uint32
	gives chan []byte
	wants chan struct{}
	stop  context.CancelFunc
}

func serve(in io.Reader, out io.Writer, door *Door) {
	h := &helper{out: out, peers: map[uint32]*peer{}, door: door}
	var work sync.WaitGroup
	defer func() {
		for _, p := range h.peers {
			p.stop()
		}
		work.Wait()
	}()
	r := bufio.NewReader(in)
	for {
		f, err := read(r)
		if err != nil {
			return
		}
		p := h.peers[f.id]
		switch f.kind {
		case open:
			if p != nil || len(f.data) != 2 {
				continue
			}
			if len(h.peers) >= Most {
				h.say(f.id, full, nil)
				continue
			}
			ctx, stop := context.WithCancel(context.Background())
			p = &peer{id: f.id, gives: make(chan []byte, 1), wants: make(chan struct{}, 1), stop: stop}
			h.peers[f.id] = p
			work.Go(func() { h.carry(ctx, p, uint32(binary.BigEndian.Uint16(f.data))) })
		case want:
			if p != nil {
				select {
				case p.wants <- struct{}{}:
				default:
				}
			}
		case give:
			if p != nil {
				select {
				case p.gives <- f.data:
				default:
				}
			}
		case shut:
			if p != nil {
				p.stop()
				delete(h.peers, f.id)
			}
		}
	}
}

// say sends an answer. Where nobody takes it the input ends too.
func (h *helper) say(id uint32, k kind, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = write(h.out, frame{id, k, data})
}

// carry is a connection from its opening until its keeper shuts it.
func (h *helper) carry(ctx context.Context, p *peer, port uint32) {
	conn, err := h.reach(ctx, port)
	if err != nil {
		h.say(p.id, refused, nil)
		return
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	h.say(p.id, opened, nil)
	var both sync.WaitGroup
	both.Go(func() { h.fetch(ctx, p, conn) })
	h.put(ctx, p, conn)
	both.Wait()
}

// reach dials a port, or where there is none takes what a program opens.
func (h *helper) reach(ctx context.Context, port uint32) (net.Conn, error) {
	if port == 0 {
		return h.door.Accept(ctx)
	}
	return Dial(ctx, port)
}

// fetch sends what the program writes.
func (h *helper) fetch(ctx context.Context, p *peer, conn net.Conn) {
	buf := make([]byte, chunk)
	for {
		select {
		case <-p.wants:
		case <-ctx.Done():
			return
		}
		n, err := conn.Read(buf)
		switch {
		case n > 0:
			h.say(p.id, bytesRead, buf[:n])
		case ctx.Err() != nil:
			return
		case errors.Is(err, io.EOF):
			h.say(p.id, ended, nil)
		default:
			h.say(p.id, failed, nil)
		}
	}
}

// put writes what the keeper sends.
func (h *helper) put(ctx context.Context, p *peer, conn net.Conn) {
	for {
		select {
		case data := <-p.gives:
			_, err := conn.Write(data)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				h.say(p.id, broken, nil)
			default:
				h.say(p.id, taken, nil)
			}
		case <-ctx.Done():
			return
		}
	}
}
