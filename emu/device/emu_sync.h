/* Order between threads: atomics, fences, mbarriers, clusters, the grid, dependent launches. */
#ifndef EMU_DEVICE_EMU_SYNC_H
#define EMU_DEVICE_EMU_SYNC_H

/* Performs the access itself. The engine has checked it, and no other fiber runs in between. */
template <class T> static inline __attribute__((noinline, no_sanitize("thread"), unused)) T
emu_get(T *p)
{
	return *(volatile T *)p;
}
template <class T> static inline __attribute__((noinline, no_sanitize("thread"), unused)) void
emu_put(T *p, T v)
{
	*(volatile T *)p = v;
}

#define EMU_LOADS(suffix, scope)                                                                   \
	template <class T> EMU_FN T ld_acquire_##suffix(const T *p, EMU_AT)                        \
	{                                                                                          \
		emu_atomic((void *)p, sizeof(T), EMU_LOAD, EMU_ACQUIRE, scope, EMU_HERE);          \
		return emu_get((T *)p);                                                            \
	}                                                                                          \
	template <class T> EMU_FN T ld_relaxed_##suffix(const T *p, EMU_AT)                        \
	{                                                                                          \
		emu_atomic((void *)p, sizeof(T), EMU_LOAD, EMU_RELAXED, scope, EMU_HERE);          \
		return emu_get((T *)p);                                                            \
	}                                                                                          \
	template <class T> EMU_FN void st_release_##suffix(T *p, T v, EMU_AT)                      \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_STORE, EMU_RELEASE, scope, EMU_HERE);                 \
		emu_put(p, v);                                                                     \
	}                                                                                          \
	template <class T> EMU_FN void st_relaxed_##suffix(T *p, T v, EMU_AT)                      \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_STORE, EMU_RELAXED, scope, EMU_HERE);                 \
		emu_put(p, v);                                                                     \
	}                                                                                          \
	template <class T> EMU_FN T atom_add_acq_rel_##suffix(T *p, T v, EMU_AT)                   \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_RMW, EMU_ACQ_REL, scope, EMU_HERE);                   \
		T o = emu_get(p);                                                                  \
		emu_put(p, (T)(o + v));                                                            \
		return o;                                                                          \
	}                                                                                          \
	template <class T> EMU_FN T atom_add_release_##suffix(T *p, T v, EMU_AT)                   \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_RMW, EMU_RELEASE, scope, EMU_HERE);                   \
		T o = emu_get(p);                                                                  \
		emu_put(p, (T)(o + v));                                                            \
		return o;                                                                          \
	}                                                                                          \
	template <class T> EMU_FN T atom_add_relaxed_##suffix(T *p, T v, EMU_AT)                   \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_RMW, EMU_RELAXED, scope, EMU_HERE);                   \
		T o = emu_get(p);                                                                  \
		emu_put(p, (T)(o + v));                                                            \
		return o;                                                                          \
	}
EMU_LOADS(cta, EMU_CTA)
EMU_LOADS(cluster, EMU_CLUSTER)
EMU_LOADS(gpu, EMU_GPU)
EMU_LOADS(sys, EMU_SYS)

#define EMU_ATOMIC(name, expr)                                                                     \
	template <class T, class V> EMU_FN T name(T *p, V w, EMU_AT)                               \
	{                                                                                          \
		emu_atomic(p, sizeof(T), EMU_RMW, EMU_RELAXED, EMU_GPU, EMU_HERE);                 \
		T o = emu_get(p), v = (T)w;                                                        \
		emu_put(p, (T)(expr));                                                             \
		return o;                                                                          \
	}
EMU_ATOMIC(atomicAdd, o + v)
EMU_ATOMIC(atomicSub, o - v)
EMU_ATOMIC(atomicMax, o > v ? o : v)
EMU_ATOMIC(atomicMin, o < v ? o : v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicAnd, o &v)
EMU_ATOMIC(atomicOr, o | v)
EMU_ATOMIC(atomicXor, o ^ v)
EMU_ATOMIC(atomicInc, o >= v ? 0 : o + 1)
template <class T> EMU_FN T
atomicCAS(T *p, T expected, T v, EMU_AT)
{
	emu_atomic(p, sizeof(T), EMU_CAS, EMU_RELAXED, EMU_GPU, EMU_HERE);
	T o = emu_get(p);
	if (o == expected)
		emu_put(p, v);
	return o;
}
EMU_FN void
__threadfence_block(EMU_AT)
{
	emu_fence(EMU_CTA, EMU_HERE);
}
EMU_FN void
__threadfence(EMU_AT)
{
	emu_fence(EMU_GPU, EMU_HERE);
}
EMU_FN void
__threadfence_system(EMU_AT)
{
	emu_fence(EMU_SYS, EMU_HERE);
}
EMU_FN void
grid_sync(EMU_AT)
{
	emu_grid_sync(EMU_HERE);
}

#if __CUDA_ARCH__ >= 800
typedef unsigned long long mbar_t;
EMU_FN void
mbar_init(mbar_t *b, unsigned n, EMU_AT)
{
	emu_mbar_init(b, n, EMU_HERE);
}
EMU_FN void
mbar_inval(mbar_t *b, EMU_AT)
{
	emu_mbar_inval(b, EMU_HERE);
}
EMU_FN void
mbar_arrive(mbar_t *b, EMU_AT)
{
	emu_mbar_arrive(b, 1, 0, EMU_HERE);
}
EMU_FN bool
mbar_test(mbar_t *b, unsigned parity, EMU_AT)
{
	return emu_mbar_test(b, parity, EMU_HERE) != 0;
}
EMU_FN void
mbar_wait(mbar_t *b, unsigned parity, EMU_AT)
{
	while (!emu_mbar_test(b, parity, EMU_HERE)) {
	}
}
#endif

#if __CUDA_ARCH__ >= 900
EMU_FN void
mbar_expect(mbar_t *b, unsigned bytes, EMU_AT)
{
	emu_mbar_arrive(b, 0, bytes, EMU_HERE);
}
EMU_FN void
mbar_arrive_expect(mbar_t *b, unsigned bytes, EMU_AT)
{
	emu_mbar_arrive(b, 1, bytes, EMU_HERE);
}
EMU_FN void
bulk_load(void *dst, const void *src, unsigned n, mbar_t *b, EMU_AT)
{
	emu_bulk_load(dst, src, n, b, EMU_HERE);
}
EMU_FN void
bulk_load_multicast(void *dst, const void *src, unsigned n, mbar_t *b, unsigned short mask, EMU_AT)
{
	emu_bulk_load_multicast(dst, src, n, b, mask, EMU_HERE);
}
EMU_FN void
bulk_prefetch_l2(const void *p, unsigned n, EMU_AT)
{
	emu_bulk_prefetch(p, n, EMU_HERE);
}
EMU_FN void
mbar_arrive_cluster(mbar_t *b, unsigned rank, EMU_AT)
{
	emu_mbar_arrive_cluster(b, rank, EMU_HERE);
}
EMU_FN void
griddep_wait(EMU_AT)
{
	emu_gdc_wait(EMU_HERE);
}
EMU_FN void
griddep_launch()
{
	emu_gdc_launch();
}
EMU_FN void
cluster_arrive(EMU_AT)
{
	emu_cluster_arrive(EMU_HERE);
}
EMU_FN void
cluster_wait(EMU_AT)
{
	emu_cluster_wait(EMU_HERE);
}
EMU_FN void
cluster_sync(EMU_AT)
{
	emu_cluster_arrive(EMU_HERE);
	emu_cluster_wait(EMU_HERE);
}
EMU_FN unsigned
cluster_rank()
{
	return emu_field<60>();
}
EMU_FN unsigned
cluster_size()
{
	return emu_cluster_size();
}
template <class T> EMU_FN T *
cluster_map(T *p, unsigned rank, EMU_AT)
{
	return (T *)emu_cluster_map(p, rank, EMU_HERE);
}
#endif

#endif
