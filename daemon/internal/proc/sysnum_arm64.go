package proc

// System calls that package syscall has no number for.
const (
	sysGetrandom       = 278
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
)
