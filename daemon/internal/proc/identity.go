package proc

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Identity is who a command runs as.
type Identity struct {
	UID, GID uint32
	Groups   []uint32
	Name     string // as /etc/passwd has it; empty when it does not
	Home     string // "/" when nothing says otherwise
}

// Own returns the daemon's own identity.
func Own() Identity {
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	id := Identity{UID: uid, GID: gid, Home: "/"}
	if entry, ok := passwd(func(e passwdEntry) bool { return e.uid == uid }); ok {
		id.Name, id.Home = entry.name, entry.home
	}
	if groups, err := os.Getgroups(); err == nil {
		for _, g := range groups {
			id.Groups = append(id.Groups, uint32(g))
		}
	}
	return id
}

// IsOwn says whether nothing has to be switched for the identity.
func (i Identity) IsOwn() bool {
	return i.UID == uint32(os.Geteuid()) && i.GID == uint32(os.Getegid())
}

// Lookup resolves "name", "uid", "name:group" or "uid:gid". A number needs no entry in /etc/passwd: its group is
// then 0, as container runtimes have it, or the daemon's own for the daemon's own uid.
func Lookup(user string) (Identity, error) {
	name, group, hasGroup := strings.Cut(user, ":")
	var id Identity
	number, numberErr := strconv.ParseUint(name, 10, 32)
	if numberErr == nil && number == 1<<32-1 {
		return id, fmt.Errorf("%q is not a user id", name)
	}
	own := Own()
	entry, known := passwd(func(e passwdEntry) bool {
		return e.name == name || (numberErr == nil && uint64(e.uid) == number)
	})
	switch {
	case known:
		id = Identity{UID: entry.uid, GID: entry.gid, Name: entry.name, Home: entry.home}
		id.Groups = groupsOf(entry.name)
	case numberErr == nil:
		id = Identity{UID: uint32(number), Home: "/"}
	default:
		return id, fmt.Errorf("no user %q in /etc/passwd", name)
	}
	if id.UID == own.UID && !hasGroup { // the runtime chose our group; /etc/passwd need not agree
		id.GID, id.Groups = own.GID, own.Groups
	}
	if hasGroup {
		gid, err := groupID(group)
		if err != nil {
			return id, err
		}
		id.GID = gid
		id.Groups = nil
	}
	if !slices.Contains(id.Groups, id.GID) {
		id.Groups = append(id.Groups, id.GID)
	}
	return id, nil
}

type passwdEntry struct {
	name, home string
	uid, gid   uint32
}

func passwd(match func(passwdEntry) bool) (passwdEntry, bool) {
	var found passwdEntry
	ok := eachLine("/etc/passwd", 7, func(f []string) bool {
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil {
			return false
		}
		found = passwdEntry{name: f[0], uid: uint32(uid), gid: uint32(gid), home: f[5]}
		if found.home == "" {
			found.home = "/"
		}
		return match(found)
	})
	return found, ok
}

func groupsOf(name string) []uint32 {
	var groups []uint32
	eachLine("/etc/group", 4, func(f []string) bool {
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && slices.Contains(strings.Split(f[3], ","), name) {
			groups = append(groups, uint32(gid))
		}
		return false
	})
	return groups
}

func groupID(group string) (uint32, error) {
	if n, err := strconv.ParseUint(group, 10, 32); err == nil && n != 1<<32-1 {
		return uint32(n), nil
	}
	var gid uint32
	if !eachLine("/etc/group", 4, func(f []string) bool {
		n, err := strconv.ParseUint(f[2], 10, 32)
		gid = uint32(n)
		return err == nil && f[0] == group
	}) {
		return 0, fmt.Errorf("no group %q in /etc/group", group)
	}
	return gid, nil
}

// eachLine calls match with a database's lines of enough fields until it says true. A missing file is an empty one;
// a FIFO or a huge file put there by a command does not stop the daemon.
func eachLine(path string, fields int, match func([]string) bool) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, 8<<20))
	for lines.Scan() {
		f := strings.SplitN(lines.Text(), ":", fields)
		if len(f) == fields && match(f) {
			return true
		}
	}
	return false
}
