#include "driver.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

__thread CUcontext driver_context;
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool ready;
static struct CUctx_st primary[8];
static int n_device = 1, n_sm = 4;
static size_t total_bytes;

/* ---- counting and injected failures ---- */
enum { MAX_NAMES = 256 };
static struct {
	const char *name;
	long n;
} calls[MAX_NAMES];
static int n_names;
static long n_calls, fail_at;
static int fail_code;
static bool fail_on, is_gone; /* is_gone: from the failing call on, the devices are gone */
static char fail_name[64];
static const char *failed;
static long n_leak;

static void
make_lock(void)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&lock, &a);
	const char *f = getenv("LLMC_EMU_FAIL"); /* "n:code", "name@n:code", "n:code+" */
	if (f && *f) {
		const char *at = strchr(f, '@');
		if (at)
			snprintf(fail_name, sizeof fail_name, "%.*s", (int)(at - f), f);
		sscanf(at ? at + 1 : f, "%ld:%d", &fail_at, &fail_code);
		fail_on = f[strlen(f) - 1] == '+';
	}
}

/* Returns the number of calls of one name so far; NULL: of all calls. */
EXPORT long emu_count(const char *name);
EXPORT long
emu_count(const char *name)
{
	long n = 0;

	pthread_once(&once, make_lock);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < n_names; i++)
		if (!name || !strcmp(calls[i].name, name))
			n += calls[i].n;
	pthread_mutex_unlock(&lock);
	return n;
}

EXPORT void emu_count_reset(void);
EXPORT void
emu_count_reset(void)
{
	pthread_once(&once, make_lock);
	pthread_mutex_lock(&lock);
	for (int i = 0; i < n_names; i++)
		calls[i].n = 0;
	pthread_mutex_unlock(&lock);
}

/* Makes the nth call of that name from now on fail (NULL: the nth call of any name). n 0: no call
 * fails. */
EXPORT void emu_fail(const char *name, long n, int code);
EXPORT void
emu_fail(const char *name, long n, int code)
{
	pthread_once(&once, make_lock);
	pthread_mutex_lock(&lock);
	snprintf(fail_name, sizeof fail_name, "%s", name ? name : "");
	n_calls = 0;
	fail_at = n;
	fail_code = code;
	fail_on = false;
	if (n)
		failed = NULL;
	pthread_mutex_unlock(&lock);
}

static void end_contexts(void);

/* Simulates lost devices: the nth call from now on and all later ones fail. n 0: the devices are
 * back, without memory and without the program's objects; handles of the program are then
 * invalid. */
EXPORT void emu_lose(long n, int code);
EXPORT void
emu_lose(long n, int code)
{
	emu_fail(NULL, n, code);
	pthread_mutex_lock(&lock);
	fail_on = n > 0;
	if (is_gone)
		end_contexts();
	is_gone = false;
	pthread_mutex_unlock(&lock);
}

/* Returns the name of the last call that was made to fail; NULL: none. */
EXPORT const char *emu_failed(void);
EXPORT const char *
emu_failed(void)
{
	return failed;
}

/* Returns the number of memory blocks, streams, modules and graphs that still existed when a
 * context without error ended, plus the number of contexts that have not ended. */
EXPORT long emu_leaks(void);
EXPORT long
emu_leaks(void)
{
	long n = n_leak;

	for (int i = 0; i < n_device; i++)
		n += primary[i].ref;
	return n;
}

/* Returns whether an error ends the context. cuda.h documents which errors do; a lost device ends
 * it too. */
static bool
is_sticky(int code)
{
	static const int codes[] = { 4,   46,  100, 214, 220, 226, 700, 702, 709, 710, 714,
		                     715, 716, 717, 718, 719, 721, 806, 810, 911, 999 };
	bool open = false;

	for (int i = 0; i < n_device; i++)
		open = open || primary[i].ref;
	for (size_t i = 0; open && i < sizeof codes / sizeof *codes; i++)
		if (codes[i] == code)
			return true;
	return false;
}

Guard
driver_enter(int *counter, const char *name, int needs, CUresult *refused)
{
	pthread_once(&once, make_lock);
	pthread_mutex_lock(&lock);
	if (*counter < 0 && n_names < MAX_NAMES) {
		*counter = n_names++;
		calls[*counter].name = name;
	}
	if (*counter >= 0)
		calls[*counter].n++;
	if (fail_at && (!fail_name[0] || !strcmp(fail_name, name)) && ++n_calls == fail_at) {
		fail_at = 0;
		failed = name;
		is_gone = fail_on;
		if (is_sticky(fail_code)) {
			timeline_drop();
			emu_error = fail_code;
		}
		*refused = fail_code;
	} else if (is_gone && !(needs & ANYTIME)) {
		timeline_drop();
		*refused = fail_code;
	} else if (emu_in_host_fn) {
		emu_note("%s: a host function in a stream must not call the driver", name);
		*refused = CUDA_ERROR_NOT_PERMITTED;
	} else if ((needs & (NEEDS_INIT | NEEDS_CONTEXT)) && !ready) {
		*refused = CUDA_ERROR_NOT_INITIALIZED;
	} else if ((needs & NEEDS_CONTEXT) && (!driver_context || !driver_context->ref)) {
		*refused = CUDA_ERROR_INVALID_CONTEXT;
	} else if (emu_error && (needs & NEEDS_CONTEXT)) {
		*refused = driver_sticky();
	} else if (needs & UNSAFE_IN_CAPTURE) {
		*refused = capture_refuse_global(name);
	}
	return 1;
}

void
driver_leave(Guard *g)
{
	(void)g;
	pthread_mutex_unlock(&lock);
}

void
emu_let_others_run(void)
{
	pthread_mutex_unlock(&lock);
	usleep(1000);
	pthread_mutex_lock(&lock);
}

/* Ends the context after a finding: nothing that is queued will run. */
CUresult
driver_sticky(void)
{
	if (emu_error)
		timeline_drop();
	return emu_error;
}

/* ---- errors, versions ---- */

API(cuGetErrorName, (CUresult code, const char **text))
{
	switch (code) {
#define X(name, value, words)                                                                      \
	case value:                                                                                \
		*text = "CUDA_" #name;                                                             \
		return CUDA_SUCCESS;
		CUDA_ERRORS(X)
#undef X
	default:
		*text = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API(cuGetErrorString, (CUresult code, const char **text))
{
	switch (code) {
#define X(name, value, words)                                                                      \
	case value:                                                                                \
		*text = words;                                                                     \
		return CUDA_SUCCESS;
		CUDA_ERRORS(X)
#undef X
	default:
		*text = NULL;
		return CUDA_ERROR_INVALID_VALUE;
	}
}

API(cuDriverGetVersion, (int *v))
{
	ENTER(cuDriverGetVersion, ANYTIME);
	if (!v)
		return CUDA_ERROR_INVALID_VALUE;
	*v = (int)emu_env("LLMC_EMU_DRIVER", 13000);
	return CUDA_SUCCESS;
}

/* ---- devices ---- */

static const struct {
	const char *name;
	int arch;
	const char *title;
} gpus[] = {
	{ "sm_70", 70, "Emulated V100" },
	{ "sm_75", 75, "Emulated T4" },
	{ "sm_80", 80, "Emulated A100" },
	{ "sm_86", 86, "Emulated A10" },
	{ "sm_87", 87, "Emulated Orin" },
	{ "sm_89", 89, "Emulated L4" },
	{ "sm_90", 90, "Emulated H100" },
	{ "sm_90a", 90, "Emulated H100" },
	{ "sm_100", 100, "Emulated B200" },
	{ "sm_100a", 100, "Emulated B200" },
	{ "sm_103", 103, "Emulated B300" },
	{ "sm_103a", 103, "Emulated B300" },
	{ "sm_110", 110, "Emulated Thor" },
	{ "sm_110a", 110, "Emulated Thor" },
	{ "sm_120", 120, "Emulated RTX 5090" },
	{ "sm_120a", 120, "Emulated RTX 5090" },
	{ "sm_121", 121, "Emulated GB10" },
	{ "sm_121a", 121, "Emulated GB10" },
	{ "sm_122", 122, "Emulated GPU without a plan of its own" },
};
static const char *title;

API(cuInit, (unsigned flags))
{
	ENTER(cuInit, ANYTIME);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (ready)
		return CUDA_SUCCESS;
	const char *gpu = getenv("LLMC_EMU_GPU"), *mode = getenv("LLMC_EMU_MODE");
	gpu = gpu && *gpu ? gpu : "sm_90a";
	for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
		if (!strcasecmp(gpu, gpus[i].name)) {
			emu_arch = gpus[i].arch;
			title = gpus[i].title;
		}
	n_device = (int)emu_env("LLMC_EMU_DEVICES", 1);
	n_sm = (int)emu_env("LLMC_EMU_SMS", 4);
	total_bytes = (size_t)emu_env("LLMC_EMU_MEM_MB", 16384) << 20;
	emu_stack_bytes = (size_t)emu_env("LLMC_EMU_STACK", 77824) / 4096 * 4096;
	if (!title || n_device < 1 || n_device > 8)
		return CUDA_ERROR_NO_DEVICE;
	if (emu_stack_bytes < 16384)
		emu_stack_bytes = 16384;
	emu_check = mode && !strcmp(mode, "check");
	emu_seed((uint64_t)emu_env("LLMC_EMU_SEED", 0));
	for (int i = 0; i < n_device; i++)
		primary[i].device = i;
	ready = true;
	return CUDA_SUCCESS;
}

API(cuDeviceGetCount, (int *n))
{
	ENTER(cuDeviceGetCount, NEEDS_INIT);
	*n = n_device;
	return CUDA_SUCCESS;
}

API(cuDeviceGet, (CUdevice * d, int i))
{
	ENTER(cuDeviceGet, NEEDS_INIT);
	if (i < 0 || i >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	*d = i;
	return CUDA_SUCCESS;
}

API(cuDeviceGetName, (char *name, int len, CUdevice d))
{
	ENTER(cuDeviceGetName, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "%s", title);
	return CUDA_SUCCESS;
}

API(cuDeviceGetUuid_v2, (CUuuid * u, CUdevice d))
{
	ENTER(cuDeviceGetUuid_v2, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	memset(u, 0xe0 + d, sizeof *u);
	return CUDA_SUCCESS;
}

API(cuDeviceGetPCIBusId, (char *s, int len, CUdevice d))
{
	ENTER(cuDeviceGetPCIBusId, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(s, (size_t)len, "0000:%02x:00.0", d + 1);
	return CUDA_SUCCESS;
}

API(cuDeviceTotalMem_v2, (size_t *n, CUdevice d))
{
	ENTER(cuDeviceTotalMem_v2, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	*n = total_bytes;
	return CUDA_SUCCESS;
}

int
device_shared_optin(void)
{
	return (emu_sm()->shared_kb - (emu_arch >= 80)) << 10;
}

API(cuDeviceGetAttribute, (int *v, int attribute, CUdevice d))
{
	ENTER(cuDeviceGetAttribute, NEEDS_INIT);
	if (!v)
		return CUDA_ERROR_INVALID_VALUE;
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case 1:
	case 2:
	case 3:
		*v = 1024;
		break;
	case 4:
		*v = 64;
		break;
	case 5:
		*v = 2147483647;
		break;
	case 6:
	case 7:
		*v = 65535;
		break;
	case 8:
		*v = 49152;
		break;
	case 9:
		*v = 65536;
		break;
	case 10:
		*v = 32;
		break;
	case 12:
	case 82:
		*v = 65536;
		break;
	case 13:
		*v = 1500000;
		break;
	case 16:
		*v = n_sm;
		break;
	case 18:
	case 32:
	case 50:
		*v = 0;
		break;
	case 19:
	case 31:
	case 41:
	case 78:
	case 83:
	case 95:
		*v = 1;
		break;
	case 20:
		*v = 0;
		break;
	case 33:
		*v = d + 1;
		break;
	case 34:
		*v = 0;
		break;
	case 36:
		*v = 1500000;
		break;
	case 37:
		*v = 4096;
		break;
	case 38:
		/* L2 is small, so that tests with more data than L2 holds stay fast */
		*v = (int)emu_env("LLMC_EMU_L2_KB", 64) << 10;
		break;
	case 39:
		*v = emu_sm()->threads;
		break;
	case 40:
		*v = 2;
		break;
	case 75:
		*v = emu_arch / 10;
		break;
	case 76:
		*v = emu_arch % 10;
		break;
	case 81:
		*v = emu_sm()->shared_kb << 10;
		break;
	case 88:
	case 115:
		*v = 0;
		break;
	case 97:
		*v = device_shared_optin();
		break;
	case 106:
		*v = emu_sm()->blocks;
		break;
	case 108:
		*v = 0;
		break;
	case 111:
		*v = emu_arch >= 80 ? 1024 : 0;
		break;
	case 120:
	case 127:
		*v = emu_arch >= 90;
		break;
	default:
		if (attribute < 1 || attribute > 140)
			return CUDA_ERROR_INVALID_VALUE;
		*v = 0;
	}
	return CUDA_SUCCESS;
}

/* ---- contexts ---- */

int
emu_contexts(void)
{
	int n = 0;

	for (int i = 0; i < n_device; i++)
		n += primary[i].ref > 0;
	return n;
}

int
emu_device(void)
{
	return driver_context ? driver_context->device : -1;
}

bool
emu_peers(int from, int to)
{
	return from == to || (from >= 0 && to >= 0 && from < n_device && to < n_device &&
	                      primary[from].peers >> to & 1);
}

API(cuDevicePrimaryCtxRetain, (CUcontext * c, CUdevice d))
{
	ENTER(cuDevicePrimaryCtxRetain, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (emu_error && primary[d].ref)
		return driver_sticky();
	primary[d].ref++;
	*c = &primary[d];
	return CUDA_SUCCESS;
}

static void
end_context(void)
{
	for (int i = 0; i < n_device; i++)
		if (primary[i].ref)
			return;
	bool well = !emu_error; /* after an error the program could not release anything, so leaks
	                           are not counted */
	if (well)
		timeline_run_all();
	timeline_drop();
	emu_error = 0;
	int n = graph_release_all();
	n += stream_release_all();
	n += module_release_all();
	n += memory_release_all();
	if (well)
		n_leak += n;
}

static void
end_contexts(void)
{
	for (int i = 0; i < n_device; i++)
		primary[i].ref = 0, primary[i].peers = 0;
	emu_error = CUDA_ERROR_UNKNOWN;
	end_context();
}

API(cuDevicePrimaryCtxRelease_v2, (CUdevice d))
{
	ENTER(cuDevicePrimaryCtxRelease_v2, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	if (!primary[d].ref)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!--primary[d].ref) {
		primary[d].peers = 0;
		end_context();
	}
	return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxReset_v2, (CUdevice d))
{
	ENTER(cuDevicePrimaryCtxReset_v2, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	int ref = primary[d].ref;
	primary[d].ref = 0;
	end_context();
	primary[d].ref = ref;
	return CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice d, unsigned flags))
{
	ENTER(cuDevicePrimaryCtxSetFlags_v2, NEEDS_INIT);
	(void)flags;
	return d < 0 || d >= n_device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

API(cuDevicePrimaryCtxGetState, (CUdevice d, unsigned *flags, int *active))
{
	ENTER(cuDevicePrimaryCtxGetState, NEEDS_INIT);
	if (d < 0 || d >= n_device)
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = 0;
	*active = primary[d].ref > 0;
	return CUDA_SUCCESS;
}

API(cuCtxSetCurrent, (CUcontext c))
{
	ENTER(cuCtxSetCurrent, NEEDS_INIT);
	if (c && (c < primary || c >= primary + n_device))
		return CUDA_ERROR_INVALID_CONTEXT;
	driver_context = c;
	return CUDA_SUCCESS;
}

API(cuCtxGetCurrent, (CUcontext * c))
{
	ENTER(cuCtxGetCurrent, NEEDS_INIT);
	*c = driver_context;
	return CUDA_SUCCESS;
}

static __thread CUcontext pushed[16];
static __thread int n_pushed;

API(cuCtxPushCurrent_v2, (CUcontext c))
{
	ENTER(cuCtxPushCurrent_v2, NEEDS_INIT);
	if (!c || c < primary || c >= primary + n_device || n_pushed == 16)
		return CUDA_ERROR_INVALID_CONTEXT;
	pushed[n_pushed++] = driver_context;
	driver_context = c;
	return CUDA_SUCCESS;
}

API(cuCtxPopCurrent_v2, (CUcontext * c))
{
	ENTER(cuCtxPopCurrent_v2, ANYTIME); /* a stack of the thread */
	if (!n_pushed)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (c)
		*c = driver_context;
	driver_context = pushed[--n_pushed];
	return CUDA_SUCCESS;
}

API(cuCtxGetDevice, (CUdevice * d))
{
	ENTER(cuCtxGetDevice, NEEDS_CONTEXT);
	*d = driver_context->device;
	return CUDA_SUCCESS;
}

API(cuCtxSynchronize, (void))
{
	ENTER(cuCtxSynchronize, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	timeline_run_device();
	timeline_known_all(emu_device());
	return driver_sticky();
}

API(cuCtxGetStreamPriorityRange, (int *least, int *greatest))
{
	ENTER(cuCtxGetStreamPriorityRange, NEEDS_CONTEXT);
	*least = 0;
	*greatest = -5;
	return CUDA_SUCCESS;
}
