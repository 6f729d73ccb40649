// an object of each calling thread, which ends with its thread
#pragma once
#ifdef _WIN32
#include <windows.h>
#endif

namespace rnnorm {
namespace {

template <class T>
class PerThread {
#ifdef _WIN32
 public:
  // GCC on Windows frees the memory of a thread_local before it calls the destructor
  PerThread() : slot_(FlsAlloc([](void* object) { delete static_cast<T*>(object); })) {
    // threads end within the library, which therefore stays where a program unloads it
    HMODULE library;
    GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                       reinterpret_cast<LPCWSTR>(this), &library);
  }
  T& operator()() {
    void* object = FlsGetValue(slot_);
    if (!object) FlsSetValue(slot_, object = new T);
    return *static_cast<T*>(object);
  }

 private:
  const DWORD slot_;
#else
 public:
  T& operator()() {
    static thread_local T object;
    return object;
  }
#endif
};

}  // namespace
}  // namespace rnnorm
