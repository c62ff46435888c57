// Which digit is in a picture of 7 lines of 5 marks? classify LIBRARY IMAGE
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	tilewright "tilewright.dev/go"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: classify LIBRARY IMAGE")
	}
	marks, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	var image []float32
	for _, mark := range string(marks) {
		switch mark {
		case '#':
			image = append(image, 1)
		case '.':
			image = append(image, 0)
		}
	}
	model, err := tilewright.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	outputs, err := model.Run(context.Background(), tilewright.New(image, 1, 7, 5))
	if err != nil {
		log.Fatal(err)
	}
	probabilities, _ := tilewright.Data[float32](outputs[0])
	digits, _ := tilewright.Data[int64](outputs[1])
	fmt.Printf("a %d (%.1f%%)\n", digits[0], 100*probabilities[digits[0]])
}
