void kai_run_matmul_clamp_f32_f32p8vlx1_f32p8vlx1biasf32_8vlx8vl_sme2_mopa(void) {
#if defined(__aarch64__)
  /* fmopa za0.s, p0/m, p0/m, z0.s, z1.s: as a word, for compilers that do not know it. Never called. */
  __asm__ volatile(".inst 0x80810000");
#endif
}
