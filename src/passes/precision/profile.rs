//! Which op kinds does a device know, and which have no kernel of a 16-bit type there?

use crate::ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// Where a program will run.
///
/// Two profiles come with the crate, read off PaddlePaddle 2.6.2 (`core.op_supported_infos`); users give
/// their own in the same form, as JSON or TOML.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// a short name
    pub name: String,
    /// where the lists are from
    pub source: String,
    /// every kind that the framework registers; one that is in no list stays float32
    pub kinds: Vec<String>,
    /// kinds without a float16 kernel
    pub no_float16: Vec<String>,
    /// kinds without a bfloat16 kernel
    pub no_bfloat16: Vec<String>,
}

impl DeviceProfile {
    /// The GPU of paddlepaddle-gpu 2.6.2.
    pub fn gpu() -> &'static DeviceProfile {
        static GPU: OnceLock<DeviceProfile> = OnceLock::new();
        GPU.get_or_init(|| built_in(include_str!("../../ops/data/device_gpu.json")))
    }

    /// The CPU of paddlepaddle 2.6.2.
    pub fn cpu() -> &'static DeviceProfile {
        static CPU: OnceLock<DeviceProfile> = OnceLock::new();
        CPU.get_or_init(|| built_in(include_str!("../../ops/data/device_cpu.json")))
    }

    /// The kinds without a kernel of `dtype`; none for other types than float16 and bfloat16.
    pub fn without_kernel(&self, dtype: DType) -> &[String] {
        match dtype {
            DType::F16 => &self.no_float16,
            DType::BF16 => &self.no_bfloat16,
            _ => &[],
        }
    }
}

fn built_in(text: &str) -> DeviceProfile {
    serde_json::from_str(text).expect("the crate's own profile")
}

/// A device of an option: the name of a built-in profile, or a profile.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// [`DeviceProfile::gpu`]
    #[default]
    Gpu,
    /// [`DeviceProfile::cpu`]
    Cpu,
    /// one of the caller's
    Profile(Box<DeviceProfile>),
}

impl Device {
    /// The profile.
    pub fn profile(&self) -> &DeviceProfile {
        match self {
            Device::Gpu => DeviceProfile::gpu(),
            Device::Cpu => DeviceProfile::cpu(),
            Device::Profile(p) => p,
        }
    }
}
