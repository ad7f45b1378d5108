package proc

// System calls that package syscall has no number for.
const (
	sysGetrandom       = 318
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
)
