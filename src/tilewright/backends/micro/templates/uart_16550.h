/* The serial line of QEMU's RISC-V board (16550). For another board write these three functions for its own. */
#include <stdint.h>

#define UART(offset) (*(volatile uint8_t*)(${uart_address} + (offset)))

static inline void uart_start(void) {
  UART(3) = 3; /* eight bits, no parity */
  UART(2) = 1; /* queues */
}

static inline int uart_get(void) {
  while (!(UART(5) & 1)) {}
  return UART(0);
}

static inline void uart_put(uint8_t byte) {
  while (!(UART(5) & 0x20)) {}
  UART(0) = byte;
}
