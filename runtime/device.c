/* The table of devices. No other file outside of a device's folder names one. */
#include "runtime/device.h"

const Device *
device_of(TargetKind kind)
{
	extern const Device cpu_device, cuda_device;
	static const Device *const of[] = {
		[TARGET_REF] = &cpu_device, [TARGET_CPU] = &cpu_device, [TARGET_CUDA] = &cuda_device
	};

	return of[kind];
}

llmc_status
device_find(const char *target, const Device **out, llmc_error *err)
{
	const Target *t = target_find(target);

	*out = t ? device_of(t->kind) : NULL;
	return t ? LLMC_OK
	         : error_set(err, LLMC_E_INPUT,
	                     "the plan is for target \"%s\", which this llmc does not support",
	                     target);
}
