#include <stdio.h>

void xnn_f32_gemm_minmax_ukernel_4x8__neon(void);
void xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2(void);
void kai_run_rhs_pack_nxk_f32p8vlx1biasf32_f32_f32_sme(void);

void (*xnn_gemm_kernel)(void);
/* Packing is there with and without the kernels that it packs for, as in the real XNNPACK. */
void (*xnn_pack_kernel)(void) = kai_run_rhs_pack_nxk_f32p8vlx1biasf32_f32_f32_sme;

void xnn_init_configs(void) {
#if XNN_ENABLE_ARM_SME2
  xnn_gemm_kernel = xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2;
#if XNN_LOG_LEVEL >= 4
  fputs("Info (XNNPACK): Using pf32_gemm microkernel 'xnn_pf32_gemm_minmax_ukernel_32x32__neonsme2'.\n", stderr);
#endif
#else
  xnn_gemm_kernel = xnn_f32_gemm_minmax_ukernel_4x8__neon;
#if XNN_LOG_LEVEL >= 4
  fputs("Info (XNNPACK): Using f32_gemm microkernel 'xnn_f32_gemm_minmax_ukernel_4x8__neon'.\n", stderr);
#endif
#endif
}
