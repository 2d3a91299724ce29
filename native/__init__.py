"""The native library: host C++ and SM70 device images in one shared object with a plain C ABI."""
