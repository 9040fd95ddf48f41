/* sm_90a: warpgroup matrix instructions; sm_90: tiles of tensor maps, bulk stores, proxy fences.
 * Their PTX definitions are in templates/cuda/ptx/wgmma.h and templates/cuda/ptx/tma.h. */
#ifndef EMU_DEVICE_EMU_WGMMA_H
#define EMU_DEVICE_EMU_WGMMA_H

#if __CUDA_ARCH__ >= 800
EMU_FN void
cp_async_arrive(mbar_t *b, EMU_AT)
{
	emu_cp_arrive(b, EMU_HERE);
}
#endif

#if __CUDA_ARCH__ >= 900
struct alignas(128) tensor_map {
	unsigned long long opaque[16];
};
EMU_FN void
fence_proxy_async()
{
	emu_proxy_fence(0);
}
EMU_FN void
fence_proxy_async_global()
{
	emu_proxy_fence(1);
}
EMU_FN void
fence_mbar_init()
{
}
EMU_FN void
tensor_prefetch(const tensor_map *)
{
}
EMU_FN void
fence_tensor_map(const tensor_map *)
{
}
EMU_FN void
tensor_load_1d(void *d, const tensor_map *m, int x, mbar_t *b, EMU_AT)
{
	int c[] = { x };
	emu_tensor_load(d, m, 1, c, b, EMU_HERE);
}
EMU_FN void
tensor_load_2d(void *d, const tensor_map *m, int x, int y, mbar_t *b, EMU_AT)
{
	int c[] = { x, y };
	emu_tensor_load(d, m, 2, c, b, EMU_HERE);
}
EMU_FN void
tensor_load_3d(void *d, const tensor_map *m, int x, int y, int z, mbar_t *b, EMU_AT)
{
	int c[] = { x, y, z };
	emu_tensor_load(d, m, 3, c, b, EMU_HERE);
}
EMU_FN void
tensor_load_4d(void *d, const tensor_map *m, int x, int y, int z, int u, mbar_t *b, EMU_AT)
{
	int c[] = { x, y, z, u };
	emu_tensor_load(d, m, 4, c, b, EMU_HERE);
}
EMU_FN void
tensor_load_5d(void *d, const tensor_map *m, int x, int y, int z, int u, int v, mbar_t *b, EMU_AT)
{
	int c[] = { x, y, z, u, v };
	emu_tensor_load(d, m, 5, c, b, EMU_HERE);
}
EMU_FN void
tensor_load_2d_rows(void *d, const tensor_map *m, int x, int y, int rows, mbar_t *b, EMU_AT)
{
	int c[] = { x, y };
	emu_tensor_load_rows(d, m, c, rows, b, EMU_HERE);
}
EMU_FN void
tensor_load_2d_rows_multicast(void *d, const tensor_map *m, int x, int y, int rows, mbar_t *b,
                              unsigned short mask, EMU_AT)
{
	int c[] = { x, y };
	emu_tensor_load_multicast(d, m, 2, c, rows, b, mask, EMU_HERE);
}
EMU_FN void
tensor_load_2d_multicast(void *d, const tensor_map *m, int x, int y, mbar_t *b, unsigned short mask,
                         EMU_AT)
{
	int c[] = { x, y };
	emu_tensor_load_multicast(d, m, 2, c, 0x7fffffff, b, mask, EMU_HERE);
}
EMU_FN void
tensor_store_1d(const tensor_map *m, int x, const void *s, EMU_AT)
{
	int c[] = { x };
	emu_tensor_store(m, 1, c, s, EMU_HERE);
}
EMU_FN void
tensor_store_2d(const tensor_map *m, int x, int y, const void *s, EMU_AT)
{
	int c[] = { x, y };
	emu_tensor_store(m, 2, c, s, EMU_HERE);
}
EMU_FN void
tensor_store_3d(const tensor_map *m, int x, int y, int z, const void *s, EMU_AT)
{
	int c[] = { x, y, z };
	emu_tensor_store(m, 3, c, s, EMU_HERE);
}
EMU_FN void
tensor_store_4d(const tensor_map *m, int x, int y, int z, int u, const void *s, EMU_AT)
{
	int c[] = { x, y, z, u };
	emu_tensor_store(m, 4, c, s, EMU_HERE);
}
EMU_FN void
tensor_store_5d(const tensor_map *m, int x, int y, int z, int u, int v, const void *s, EMU_AT)
{
	int c[] = { x, y, z, u, v };
	emu_tensor_store(m, 5, c, s, EMU_HERE);
}
EMU_FN void
bulk_store(void *d, const void *s, unsigned n, EMU_AT)
{
	emu_bulk_store(d, s, n, EMU_HERE);
}
EMU_FN void
bulk_commit()
{
	emu_bulk_commit();
}
template <int LEFT> EMU_FN void
bulk_wait()
{
	emu_bulk_wait(LEFT, 0);
}
template <int LEFT> EMU_FN void
bulk_wait_read()
{
	emu_bulk_wait(LEFT, 1);
}
#endif

#if __CUDA_ARCH__ == 900
EMU_FN unsigned long long
smem_desc(const void *p, unsigned lead, unsigned stride, unsigned swizzle, EMU_AT)
{
	unsigned long long mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
	return (emu_smem_offset(p, EMU_HERE) & 0x3ffff) >> 4 |
	       (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
	       mode << 62;
}
EMU_FN void
wgmma_fence()
{
	emu_wgmma_fence();
}
EMU_FN void
wgmma_commit(EMU_AT)
{
	emu_wgmma_commit(EMU_HERE);
}
template <int LEFT> EMU_FN void
wgmma_wait(EMU_AT)
{
	emu_wgmma_wait(LEFT, EMU_HERE);
}
template <int N> EMU_FN void
wgmma_pin(float (&)[N])
{
}
#define EMU_WGMMA(type, n, flag)                                                                   \
	EMU_FN void wgmma_##type##_m64n##n##k16(float(&d)[n / 2], unsigned long long a,            \
	                                        unsigned long long b, int acc, EMU_AT)             \
	{                                                                                          \
		emu_wgmma(flag, n, d, 0, a, b, acc, EMU_HERE);                                     \
	}                                                                                          \
	EMU_FN void wgmma_##type##_m64n##n##k16_bt(float(&d)[n / 2], unsigned long long a,         \
	                                           unsigned long long b, int acc, EMU_AT)          \
	{                                                                                          \
		emu_wgmma(flag | EMU_WG_TB, n, d, 0, a, b, acc, EMU_HERE);                         \
	}                                                                                          \
	EMU_FN void wgmma_##type##_m64n##n##k16_ra(float(&d)[n / 2], const unsigned(&a)[4],        \
	                                           unsigned long long b, int acc, EMU_AT)          \
	{                                                                                          \
		emu_wgmma(flag, n, d, a, 0, b, acc, EMU_HERE);                                     \
	}                                                                                          \
	EMU_FN void wgmma_##type##_m64n##n##k16_ra_bt(float(&d)[n / 2], const unsigned(&a)[4],     \
	                                              unsigned long long b, int acc, EMU_AT)       \
	{                                                                                          \
		emu_wgmma(flag | EMU_WG_TB, n, d, a, 0, b, acc, EMU_HERE);                         \
	}
#define EMU_WGMMA_N(n) EMU_WGMMA(bf16, n, 0) EMU_WGMMA(f16, n, EMU_WG_F16)
EMU_WGMMA_N(32)
EMU_WGMMA_N(64)
EMU_WGMMA_N(96)
EMU_WGMMA_N(128)
EMU_WGMMA_N(192)
EMU_WGMMA_N(256)
EMU_FN void
wgmma_e4m3_m64n128k32(float (&d)[64], unsigned long long a, unsigned long long b, int acc, EMU_AT)
{
	emu_wgmma(EMU_WG_E4M3, 128, d, 0, a, b, acc, EMU_HERE);
}
template <int N> EMU_FN void
reg_dec(EMU_AT)
{
	emu_setmaxnreg(N, 0, EMU_HERE);
}
template <int N> EMU_FN void
reg_inc(EMU_AT)
{
	emu_setmaxnreg(N, 1, EMU_HERE);
}
#endif

#endif
