/* Matrix instructions and asynchronous copies, by architecture. d may alias c. */
#ifndef EMU_DEVICE_EMU_MMA_H
#define EMU_DEVICE_EMU_MMA_H

template <int OP, int NA, int NB, int NC, class C> EMU_FN void
emu_multiply(C *d, const unsigned *a, const unsigned *b, const C *c, EMU_AT)
{
	emu_words wa = { a[0] | (emu_word)(NA > 1 ? a[NA > 1] : 0) << 32,
		         NA > 2 ? a[2 * (NA > 2)] | (emu_word)a[3 * (NA > 2)] << 32 : 0 };
	emu_four f = { 0, 0, 0, 0 };
	__builtin_memcpy(&f, c, NC * 4);
	f = emu_mma(OP, wa, b[0] | (emu_word)(NB > 1 ? b[NB > 1] : 0) << 32, f, EMU_HERE);
	__builtin_memcpy(d, &f, NC * 4);
}
#define EMU_MMA(name, op, na, nb, nc, T)                                                           \
	EMU_FN void name(T(&d)[nc], const unsigned(&a)[na], const unsigned(&b)[nb],                \
	                 const T(&c)[nc], EMU_AT)                                                  \
	{                                                                                          \
		emu_multiply<op, na, nb, nc, T>(d, a, b, c, EMU_HERE);                             \
	}

#define EMU_LDMATRIX(name, op, n)                                                                  \
	EMU_FN void name(unsigned(&r)[n], const void *row, EMU_AT)                                 \
	{                                                                                          \
		emu_words w = emu_ldmatrix(op, n, row, EMU_HERE);                                  \
		__builtin_memcpy(r, &w, 4 * n);                                                    \
	}
EMU_LDMATRIX(ldmatrix_x1, EMU_W_LDMATRIX, 1)
EMU_LDMATRIX(ldmatrix_x2, EMU_W_LDMATRIX, 2)
EMU_LDMATRIX(ldmatrix_x4, EMU_W_LDMATRIX, 4)
EMU_LDMATRIX(ldmatrix_x1_trans, EMU_W_LDMATRIX_T, 1)
EMU_LDMATRIX(ldmatrix_x2_trans, EMU_W_LDMATRIX_T, 2)
EMU_LDMATRIX(ldmatrix_x4_trans, EMU_W_LDMATRIX_T, 4)
EMU_MMA(mma_f16_m16n8k8, EMU_W_MMA_F16_1688, 2, 1, 4, float)
EMU_MMA(mma_s8_m8n8k16, EMU_W_MMA_S8_8816, 1, 1, 2, int)

#if __CUDA_ARCH__ >= 800
EMU_MMA(mma_bf16_m16n8k16, EMU_W_MMA_BF16_16816, 4, 2, 4, float)
EMU_MMA(mma_f16_m16n8k16, EMU_W_MMA_F16_16816, 4, 2, 4, float)
EMU_MMA(mma_bf16_m16n8k8, EMU_W_MMA_BF16_1688, 2, 1, 4, float)
EMU_MMA(mma_tf32_m16n8k8, EMU_W_MMA_TF32_1688, 4, 2, 4, float)
EMU_MMA(mma_s8_m16n8k32, EMU_W_MMA_S8_16832, 4, 2, 4, int)
EMU_MMA(mma_s8_m16n8k16, EMU_W_MMA_S8_16816, 2, 1, 4, int)
#if __CUDA_ARCH__ >= 890
EMU_MMA(mma_e4m3_m16n8k32, EMU_W_MMA_E4M3_16832, 4, 2, 4, float)
#endif

EMU_FN void
cp_async_16(void *dst, const void *src, EMU_AT)
{
	emu_cp_async(dst, src, 16, 16, EMU_HERE);
}
EMU_FN void
cp_async_8(void *dst, const void *src, EMU_AT)
{
	emu_cp_async(dst, src, 8, 8, EMU_HERE);
}
EMU_FN void
cp_async_4(void *dst, const void *src, EMU_AT)
{
	emu_cp_async(dst, src, 4, 4, EMU_HERE);
}
/* The remaining bytes of the 16 become zero. */
EMU_FN void
cp_async_16_fill(void *dst, const void *src, unsigned n, EMU_AT)
{
	emu_cp_async(dst, src, 16, n, EMU_HERE);
}
EMU_FN void
cp_async_commit()
{
	emu_cp_commit();
}
template <int LEFT> EMU_FN void
cp_async_wait()
{
	emu_cp_wait(LEFT);
}
EMU_FN void
cp_async_wait_all()
{
	emu_cp_wait_all();
}
#endif

#if __CUDA_ARCH__ >= 900
EMU_FN void
stmatrix_x4(void *row, const unsigned (&r)[4], EMU_AT)
{
	emu_words w;
	__builtin_memcpy(&w, r, 16);
	emu_stmatrix(row, w, EMU_HERE);
}
#endif

#endif
