void xnn_f32_gemm_minmax_ukernel_4x8__neon(void) {}
