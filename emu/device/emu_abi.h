/* Interface through which compiled kernels call the engine. Every call passes its source position.
 * Usable from C and C++, includes no headers. */
#ifndef EMU_DEVICE_EMU_ABI_H
#define EMU_DEVICE_EMU_ABI_H

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef unsigned long emu_u64;
typedef unsigned long emu_size;
/* up to 16 bytes passed in registers, so that the compiler can keep a kernel's arrays in registers
 * too */
typedef struct {
	emu_u64 a, b;
} emu_words;
typedef struct {
	float a, b, c, d;
} emu_four;

enum { EMU_RELAXED, EMU_ACQUIRE, EMU_RELEASE, EMU_ACQ_REL };
enum { EMU_CTA, EMU_CLUSTER, EMU_GPU, EMU_SYS };
enum { EMU_LOAD, EMU_STORE, EMU_RMW, EMU_CAS };

void emu_syncthreads(const char *file, int line);
unsigned emu_syncthreads_count(int p, const char *file, int line);
void emu_named_sync(int id, int n, const char *file, int line);
void emu_named_arrive(int id, int n, const char *file, int line);
void emu_grid_sync(const char *file, int line);
void emu_cluster_arrive(const char *file, int line);
void emu_cluster_wait(const char *file, int line);
unsigned emu_cluster_size(void);
void *emu_cluster_map(const void *p, unsigned rank, const char *file, int line);
void emu_gdc_wait(const char *file, int line);
void emu_gdc_launch(void);
void emu_spin(const char *file, int line);
void emu_trap(const char *file, int line);

void *emu_shared_static(const void *site, emu_size n, emu_size align, const char *name,
                        const char *type, const char *file, int line);
void *emu_shared_arena(emu_size n, const char *name, const char *type, const char *file, int line);

emu_u64 emu_warp(int op, unsigned mask, emu_u64 value, emu_u64 arg, const char *file, int line);
emu_four emu_mma(int op, emu_words a, emu_u64 b, emu_four c, const char *file, int line);
emu_words emu_ldmatrix(int op, int n, const void *row, const char *file, int line);
void emu_stmatrix(void *row, emu_words v, const char *file, int line);
unsigned emu_activemask(const char *file, int line);

emu_words emu_load(const void *p, unsigned n, const char *file, int line);
emu_words emu_load_const(const void *p, unsigned n, const char *file, int line);
void emu_store(void *p, emu_words v, unsigned n, const char *file, int line);
__attribute__((noreturn, cold)) void emu_misaligned(unsigned n, int write, const char *file,
                                                    int line);
void emu_atomic(void *p, unsigned n, int kind, int order, int scope, const char *file, int line);
void emu_fence(int scope, const char *file, int line);

void emu_cp_async(void *dst, const void *src, unsigned n, unsigned src_n, const char *file,
                  int line);
void emu_cp_commit(void);
void emu_cp_wait(int left);
void emu_cp_wait_all(void);

void emu_mbar_init(void *bar, unsigned count, const char *file, int line);
void emu_mbar_inval(void *bar, const char *file, int line);
emu_u64 emu_mbar_arrive(void *bar, unsigned count, unsigned tx_bytes, const char *file, int line);
int emu_mbar_test(void *bar, unsigned parity, const char *file, int line);
void emu_mbar_arrive_cluster(void *bar, unsigned rank, const char *file, int line);
void emu_cp_arrive(void *bar, const char *file, int line);
void emu_tensor_load(void *dst, const void *map, int rank, const int *c, void *bar,
                     const char *file, int line);
void emu_tensor_load_rows(void *dst, const void *map, const int *c, int rows, void *bar,
                          const char *file, int line);
void emu_tensor_load_multicast(void *dst, const void *map, int rank, const int *c, int rows,
                               void *bar, unsigned mask, const char *file, int line);
void emu_tensor_store(const void *map, int rank, const int *c, const void *src, const char *file,
                      int line);
void emu_bulk_store(void *dst, const void *src, unsigned n, const char *file, int line);
void emu_bulk_commit(void);
void emu_bulk_wait(int left, int read_only);
void emu_proxy_fence(int global);
void emu_setmaxnreg(int n, int up, const char *file, int line);
/* flags: EMU_WG_* of warp_ops.h; a: four registers, or NULL to use descriptor da */
void emu_wgmma(int flags, int n, float *d, const unsigned *a, emu_u64 da, emu_u64 db,
               int accumulate, const char *file, int line);
void emu_wgmma_fence(void);
void emu_wgmma_commit(const char *file, int line);
void emu_wgmma_wait(int left, const char *file, int line);
emu_u64 emu_smem_offset(const void *p, const char *file, int line);
void emu_bulk_load(void *dst, const void *src, unsigned n, void *bar, const char *file, int line);
void emu_prefetch(const void *p, const char *file, int line);
void emu_bulk_prefetch(const void *p, unsigned n, const char *file, int line);
void emu_bulk_load_multicast(void *dst, const void *src, unsigned n, void *bar, unsigned mask,
                             const char *file, int line);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop

#endif
