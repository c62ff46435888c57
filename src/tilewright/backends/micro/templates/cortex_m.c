/* Start-up of a Cortex-M: vectors, memory, floats, and a clock. */
#include <stdint.h>
#include "semihosting.h"

extern uint32_t tw_stack_top, tw_data_source, tw_data_begin, tw_data_end, tw_bss_begin, tw_bss_end;
int main(void);

#define REGISTER(address) (*(volatile uint32_t*)(address))

void reset(void) {
#if defined(__ARM_FP)
  REGISTER(0xe000ed88) |= 0xfu << 20; /* full access to the floating-point unit (and MVE) */
  __asm__ volatile("dsb\nisb");
#endif
  for (uint32_t *to = &tw_data_begin, *from = &tw_data_source; to < &tw_data_end;) *to++ = *from++;
  for (uint32_t* to = &tw_bss_begin; to < &tw_bss_end;) *to++ = 0;
  leave(main());
}

static void fault(void) { fail("a fault of the processor", ""); }

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))&tw_stack_top, reset, fault, fault, fault, fault, fault,
};

/* The counter of cycles where the processor has one (DWT); else SysTick: 24 bits, downwards, with its clock. */
uint32_t clock_has_cycles;

void start_clock(void) {
  REGISTER(0xe000edfc) |= 1u << 24;
  REGISTER(0xe0001000) |= 1;
  const uint32_t before = REGISTER(0xe0001004);
  __asm__ volatile("nop\nnop\nnop\nnop");
  clock_has_cycles = REGISTER(0xe0001004) != before;
  REGISTER(0xe000e014) = 0xffffff;
  REGISTER(0xe000e018) = 0;
  REGISTER(0xe000e010) = 5;
}

uint32_t clock_ticks(void) {
  return clock_has_cycles ? REGISTER(0xe0001004) : 0xffffff - REGISTER(0xe000e018);
}

/* Cycles; or instructions, of which QEMU executes one a nanosecond (-icount shift=0): its clock has ${clock_mhz} MHz. */
uint32_t clock_between(uint32_t begin, uint32_t end) {
  if (clock_has_cycles) return end - begin;
  return (uint32_t)((uint64_t)((end - begin) & 0xffffff) * 1000u / ${clock_mhz}u);
}
