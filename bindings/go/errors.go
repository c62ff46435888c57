package tilewright

// A Kind says what sort of thing went wrong. Kinds are errors, for errors.Is(err, tilewright.ErrShape).
type Kind int

// The kinds of errors.
const (
	ErrArgument    Kind = 1 // a number of arrays that is wrong, memory that is not there
	ErrFile        Kind = 2 // the file cannot be read
	ErrLibrary     Kind = 3 // no library, truncated or damaged
	ErrUnsupported Kind = 4 // for another processor, or not a model that can be run from here
	ErrShape       Kind = 5 // an array does not fit
	ErrType        Kind = 6 // an array of another data type
	ErrMemory      Kind = 7 // no memory
	ErrData        Kind = 8 // a value that the model cannot use: an index out of range, a division by zero
	ErrClosed      Kind = 9 // the model has been closed
)

var kinds = [...]string{"no error", "wrong argument", "unreadable file", "bad library", "unsupported", "wrong shape",
	"wrong data type", "out of memory", "bad data", "closed"}

func (kind Kind) Error() string {
	if kind < 0 || int(kind) >= len(kinds) {
		return "unknown"
	}
	return kinds[kind]
}

// An Error is what went wrong, as a sentence.
type Error struct {
	Kind    Kind
	Message string
}

func (err *Error) Error() string { return "tilewright: " + err.Message }

// Unwrap gives the kind.
func (err *Error) Unwrap() error { return err.Kind }
