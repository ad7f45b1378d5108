package httpd

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func serve(t *testing.T, handler http.HandlerFunc) func() net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go (&Server{Handler: handler, MaxConnections: 50}).Serve(listener)
	return func() net.Conn {
		nc, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { nc.Close() })
		return nc
	}
}

func answer(t *testing.T, br *bufio.Reader, method string) (*http.Response, string) {
	t.Helper()
	r, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("%v after %d bytes", err, len(body))
	}
	return r, string(body)
}

func TestAnswersOfEverySizeAndKeepAlive(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var n int
		fmt.Sscan(r.URL.Query().Get("n"), &n)
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(n))
		}
		for n > 0 {
			step := min(n, 5000)
			io.WriteString(w, strings.Repeat("x", step))
			n -= step
		}
	})
	nc := dial()
	br := bufio.NewReader(nc)
	for _, path := range []string{"/", "/known"} {
		for _, n := range []int{0, 1, bufferBytes, bufferBytes + 1, 1 << 20} {
			for _, method := range []string{"GET", "HEAD"} {
				fmt.Fprintf(nc, "%s %s?n=%d HTTP/1.1\r\nHost: x\r\n\r\n", method, path, n)
				r, body := answer(t, br, method)
				if want := map[string]int{"GET": n, "HEAD": 0}[method]; len(body) != want || r.StatusCode != 200 {
					t.Fatalf("%s %s %d: %d bytes", method, path, n, len(body))
				}
			}
		}
	}
}

func TestPipelinedRequests(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, body)
	})
	nc := dial()
	io.WriteString(nc, "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nonePOST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\nGET /c HTTP/1.1\r\nHost: x\r\n\r\n")
	br := bufio.NewReader(nc)
	for _, want := range []string{"/a one", "/b two", "/c "} {
		if _, body := answer(t, br, "GET"); body != want {
			t.Fatalf("%q, not %q", body, want)
		}
	}
}

func TestB065Bodies(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refuse" {
			w.WriteHeader(413)
			return
		}
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "%d %v", n, err)
	})
	nc := dial()
	io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	br := bufio.NewReader(nc)
	if line, _ := br.ReadString('\n'); !strings.Contains(line, "100") {
		t.Fatal(line)
	}
	br.ReadString('\n')
	io.WriteString(nc, "hello")
	if _, body := answer(t, br, "POST"); body != "5 <nil>" {
		t.Fatal(body)
	}
	nc = dial() // refused before the body is asked for: no 100, and the connection ends
	io.WriteString(nc, "POST /refuse HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
	if r, _ := answer(t, bufio.NewReader(nc), "POST"); r.StatusCode != 413 || !r.Close {
		t.Fatal(r.Status)
	}
	nc = dial() // a large body that nobody wants: the answer arrives, and the connection ends
	fmt.Fprintf(nc, "POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 10<<20)
	go nc.Write(make([]byte, 10<<20))
	if r, _ := answer(t, bufio.NewReader(nc), "POST"); r.StatusCode != 413 {
		t.Fatal(r.Status)
	}
	nc = dial() // a body that ends early
	io.WriteString(nc, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nshort")
	nc.(*net.TCPConn).CloseWrite()
	if _, body := answer(t, bufio.NewReader(nc), "POST"); body != "5 unexpected EOF" {
		t.Fatal(body)
	}
}

func TestB058CallerGoesAway(t *testing.T) {
	gone := make(chan error, 10)
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/flood" {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					gone <- err
					return
				}
			}
		}
		ctx, stop := context.WithCancel(r.Context())
		defer stop()
		select {
		case <-ctx.Done():
			gone <- ctx.Err()
		case <-time.After(10 * time.Second):
			gone <- nil
		}
	})
	for _, path := range []string{"/wait", "/flood"} {
		nc := dial()
		fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		time.Sleep(50 * time.Millisecond)
		nc.Close()
		select {
		case err := <-gone:
			if err == nil {
				t.Fatalf("%s: not noticed", path)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: the handler goes on", path)
		}
	}
}

func TestContextWatchGivesTheConnectionBack(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(5 * time.Millisecond):
		}
		io.WriteString(w, "ok")
	})
	nc := dial()
	br := bufio.NewReader(nc)
	for range 100 {
		io.WriteString(nc, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, body := answer(t, br, "GET"); body != "ok" {
			t.Fatal(body)
		}
	}
	io.WriteString(nc, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 5)) // the next one arrives while one is watched
	for range 5 {
		answer(t, br, "GET")
	}
}

func TestBadRequests(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Name", "a\r\nInjected: yes") })
	for input, want := range map[string]string{
		"nonsense\r\n\r\n": "400", "GET / HTTP/2.0\r\nHost: x\r\n\r\n": "400", "GET / HTTP/1.1\r\n\r\n": "400",
		"GET / HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", maxHeadBytes+8192) + "\r\n\r\n": "431",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n":           "400",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n":                               "400",
		"GET / HTTP/1.0\r\n\r\n": "200",
	} {
		nc := dial()
		go io.WriteString(nc, input)
		raw, _ := io.ReadAll(nc)
		if !strings.HasPrefix(string(raw), "HTTP/1.1 "+want) || strings.Contains(string(raw), "\nInjected") {
			t.Errorf("%.60q: %.200q", input, raw)
		}
	}
}

func TestTooManyConnections(t *testing.T) {
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	for range 50 {
		dial()
	}
	time.Sleep(50 * time.Millisecond)
	raw, _ := io.ReadAll(dial())
	if !strings.HasPrefix(string(raw), "HTTP/1.1 503") {
		t.Fatalf("%q", raw)
	}
}

func TestFilesAreCopiedExactly(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
	name := t.TempDir() + "/file"
	os.WriteFile(name, content, 0o600)
	dial := serve(t, func(w http.ResponseWriter, r *http.Request) {
		file, _ := os.Open(name)
		defer file.Close()
		if r.URL.Path == "/known" {
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		}
		io.Copy(w, file)
	})
	nc := dial()
	br := bufio.NewReader(nc)
	for _, path := range []string{"/known", "/unknown"} {
		fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		if _, body := answer(t, br, "GET"); body != string(content) {
			t.Fatalf("%s: %d bytes", path, len(body))
		}
	}
}
