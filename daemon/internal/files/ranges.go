package files

// The Range header (RFC 9110, section 14), for one range: every client that resumes a download sends one,
// and a multipart answer would only be a second way to be wrong.

import (
	"strconv"
	"strings"
)

type rangeKind int

const (
	wholeFile     rangeKind = iota // none, several, or not understood: the RFC says to ignore it
	partOfFile                     // [start, start+length)
	unsatisfiable                  // understood, but nothing of the file lies in it
)

// parseRange reads a Range header for a file of size bytes. The result always lies within the file.
func parseRange(header string, size int64) (kind rangeKind, start, length int64) {
	unit, spec, found := strings.Cut(header, "=")
	if !found || !strings.EqualFold(strings.TrimSpace(unit), "bytes") || strings.Contains(spec, ",") {
		return wholeFile, 0, size
	}
	firstText, lastText, found := strings.Cut(strings.TrimSpace(spec), "-")
	if !found {
		return wholeFile, 0, size
	}
	first, firstOK := rangeNumber(firstText)
	last, lastOK := rangeNumber(lastText)
	switch {
	case firstText == "" && lastOK: // "-n": the last n bytes
		if last == 0 || size == 0 {
			return unsatisfiable, 0, 0
		}
		last = min(last, size)
		return partOfFile, size - last, last
	case !firstOK || (lastText != "" && !lastOK) || (lastOK && last < first):
		return wholeFile, 0, size
	case first >= size:
		return unsatisfiable, 0, 0
	case lastText == "" || last >= size:
		return partOfFile, first, size - first
	}
	return partOfFile, first, last - first + 1
}

// rangeNumber reads digits only; a number beyond any file counts as the largest there is.
func rangeNumber(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 1<<63 - 1, true
	}
	return number, true
}
