module tilewright.dev/go

go 1.19
