package server

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"sandman.dev/daemon/internal/execs"
	"sandman.dev/daemon/internal/problem"
	"sandman.dev/daemon/internal/spool"
)

// outputChunk is copied at once; the answer's memory.
const outputChunk = 64 << 10

// output sends one stream's bytes from an offset: what is kept now, or with follow all until the command's end. A
// body is always contiguous: at a gap it ends, and asking again from there tells what is gone.
func (s *Server) output(w http.ResponseWriter, r *http.Request, e *execs.Exec) error {
	query := r.URL.Query()
	var source *execs.Output
	switch query.Get("stream") {
	case "stdout", "":
		source = e.Stdout
	case "stderr":
		source = e.Stderr
	default:
		return problem.Invalid("stream", `must be "stdout" or "stderr"`)
	}
	stream := source.Spool
	switch query.Get("late") {
	case "", "false":
	case "true":
		if stream = source.Late(); stream == nil {
			stream = spool.New(spool.Options{})
			stream.Finish()
		}
	default:
		return problem.Invalid("late", "must be true or false")
	}
	follow := query.Get("follow")
	if follow != "" && follow != "true" && follow != "false" {
		return problem.Invalid("follow", "must be true or false")
	}
	offset, err := number(query, "offset", 0, 0, 1<<62)
	if err != nil {
		return err
	}
	limit, err := number(query, "limit", 1<<62, 1, 1<<62)
	if err != nil {
		return err
	}
	state := stream.State()
	if offset > state.Total {
		return (&problem.Problem{Slug: "offset-out-of-range", Title: "The stream has not come so far",
			Status: http.StatusRequestedRangeNotSatisfiable}).With("total_bytes", state.Total)
	}
	header := w.Header()
	if offset >= state.HeadEnd && offset < state.TailStart {
		header.Set("Sandman-Gap", fmt.Sprintf("%d-%d", offset, state.TailStart))
		offset = state.TailStart
	}
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Sandman-Offset", strconv.FormatInt(offset, 10))
	header.Set("Sandman-Total", strconv.FormatInt(state.Total, 10))
	header.Set("Sandman-Complete", strconv.FormatBool(state.End >= 0))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	sendOutput(w, r, stream, offset, limit, follow == "true")
	return nil
}

func sendOutput(w http.ResponseWriter, r *http.Request, stream *spool.Spool, offset, limit int64, follow bool) {
	flush := http.NewResponseController(w)
	sub := stream.Subscribe()
	defer sub.Close()
	stop := stream.State().Total
	buffer := make([]byte, outputChunk)
	for limit > 0 {
		n, next, err := stream.ReadAt(buffer[:min(int64(len(buffer)), limit)], offset)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return
			}
			offset, limit = next, limit-int64(n)
			if !follow && offset >= stop {
				return
			}
			continue
		}
		if next > offset || !follow { // a gap, or all there is
			return
		}
		if state := stream.State(); state.End >= 0 && offset >= state.End {
			return
		}
		if err := flush.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		select {
		case <-sub.C:
		case <-r.Context().Done():
			cut() // the body's own end would say that all has come
		}
	}
}
