package files

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestB063BigFilesStreamInLittleMemory(t *testing.T) {
	s := start(t)
	const size = 512 << 20
	var before, peak runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				if now.HeapInuse > peak.HeapInuse {
					peak = now
				}
			}
		}
	})
	request, _ := http.NewRequest("PUT", s.url+"/v1/files?path=big", &zeros{size})
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != 201 {
		t.Fatal(response, err)
	}
	response.Body.Close()
	if response, err = http.Get(s.url + "/v1/files?path=big"); err != nil {
		t.Fatal(err)
	}
	read, err := io.Copy(io.Discard, response.Body)
	response.Body.Close()
	close(stop)
	watching.Wait()
	if read != size || err != nil {
		t.Fatalf("%d bytes: %v", read, err)
	}
	if grown := int64(peak.HeapInuse) - int64(before.HeapInuse); grown > 16<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
}

func TestB075ContentIsExactAndMissingIsNotEmpty(t *testing.T) {
	s := start(t)
	for name, content := range map[string][]byte{
		"random": random(9, 10<<20), "a.gz": {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3}, "crlf": []byte("a\r\nb\r\n"),
		"nul": make([]byte, 4096), "page.html": []byte("<html>"), "empty": {},
	} {
		s.put(name, string(content))
		got := s.want(200, "GET", "/v1/files", q("path", name), "")
		if !bytes.Equal(got.body, content) || got.header.Get("Content-Type") != "application/octet-stream" ||
			got.header.Get("Content-Length") != fmt.Sprint(len(content)) || got.header.Get("Content-Encoding") != "" {
			t.Errorf("%s: %d bytes, %v", name, len(got.body), got.header)
		}
	}
	got := s.refused(404, "not-found", "GET", "/v1/files", q("path", "missing"), "")
	if got["errno"] != "ENOENT" || got["path"] != s.at("missing") {
		t.Errorf("%v", got)
	}
	s.refused(409, "is-a-directory", "GET", "/v1/files", q("path", "."), "")
	s.refused(409, "not-a-directory", "GET", "/v1/files", q("path", "empty/x"), "")
	s.want(404, "HEAD", "/v1/files", q("path", "missing"), "")
	head := s.want(200, "HEAD", "/v1/files", q("path", "random"), "")
	if head.header.Get("X-Sandman-Size") != "10485760" || head.header.Get("Content-Length") != "10485760" || head.header.Get("X-Sandman-Mode") != "0644" {
		t.Errorf("%v", head.header)
	}
	if folder := s.want(200, "HEAD", "/v1/files", q("path", "."), ""); folder.header.Get("X-Sandman-Type") != "directory" {
		t.Errorf("%v", folder.header)
	}
}

func TestRangesResumeADownload(t *testing.T) {
	s := start(t)
	content := random(5, 1000)
	s.put("f", string(content))
	get := func(header, ifRange string) answer {
		request, _ := http.NewRequest("GET", s.url+"/v1/files?path=f", nil)
		request.Header.Set("Range", header)
		if ifRange != "" {
			request.Header.Set("If-Range", ifRange)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		got, _ := io.ReadAll(response.Body)
		return answer{response.StatusCode, response.Header, got}
	}
	for header, want := range map[string]struct{ from, to int }{
		"bytes=0-0": {0, 1}, "bytes=10-19": {10, 20}, "bytes=990-": {990, 1000}, "bytes=-10": {990, 1000}, "bytes=-5000": {0, 1000},
		"bytes=5-99999999999999999999": {5, 1000},
	} {
		got := get(header, "")
		if got.status != 206 || !bytes.Equal(got.body, content[want.from:want.to]) ||
			got.header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/1000", want.from, want.to-1) {
			t.Errorf("%s: %d, %d bytes, %v", header, got.status, len(got.body), got.header)
		}
	}
	for _, header := range []string{"bytes=5-4", "bytes=0-1,3-4", "lines=1-2", "bytes", "bytes=a-b", "bytes=-"} {
		if got := get(header, ""); got.status != 200 || len(got.body) != 1000 {
			t.Errorf("%s: %d", header, got.status)
		}
	}
	for _, header := range []string{"bytes=1000-", "bytes=-0", "bytes=99999999999999999999-"} {
		if got := get(header, ""); got.status != 416 || got.header.Get("Content-Range") != "bytes */1000" {
			t.Errorf("%s: %d", header, got.status)
		}
	}
	tag := get("bytes=0-0", "").header.Get("ETag")
	if got := get("bytes=0-0", tag); got.status != 206 {
		t.Error("the same file was not resumed")
	}
	s.put("f", string(random(6, 1000)))
	if got := get("bytes=0-0", tag); got.status != 200 {
		t.Error("another file was resumed")
	}
}

func TestSpecialFilesNeverHang(t *testing.T) {
	s := start(t)
	if err := syscall.Mkfifo(s.at("fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", s.at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for path, kind := range map[string]string{"fifo": "fifo", "socket": "socket", "/dev/zero": "char_device", "/dev/tty": "char_device"} {
		for _, method := range []string{"GET", "PUT"} {
			if got := s.refused(409, "special-file", method, "/v1/files", q("path", path), "x"); got["file_type"] != kind {
				t.Errorf("%s %s: %v", method, path, got)
			}
		}
		s.want(200, "HEAD", "/v1/files", q("path", path), "")
	}
	status := s.want(200, "GET", "/v1/files", q("path", "/proc/self/status"), "")
	if !bytes.Contains(status.body, []byte("VmRSS")) || status.header.Get("Content-Length") != fmt.Sprint(len(status.body)) {
		t.Errorf("/proc: %d bytes, %v", len(status.body), status.header)
	}
	if got := s.get("/sys/kernel/uevent_seqnum"); len(got) == 0 || len(got) > 30 {
		t.Errorf("/sys: %q", got)
	}
	// Endless: cut off, and never taken for whole.
	if got, err := s.try("GET", "/v1/files", q("path", "/proc/self/pagemap"), nil); err == nil {
		t.Errorf("pagemap looks whole with %d bytes", len(got.body))
	}
	s.want(200, "PUT", "/v1/files", q("path", "/proc/self/comm"), "renamed")
	if got := s.get("/proc/self/comm"); got != "renamed\n" {
		t.Errorf("/proc/self/comm is %q", got)
	}
	for _, path := range []string{"/proc/new", "/sys/new"} {
		if got := s.call("PUT", "/v1/files", q("path", path), "x"); got.status != 403 && got.status != 404 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}
