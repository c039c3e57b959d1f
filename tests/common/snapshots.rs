//! Where do snapshots live? In the top-level folder `snapshots`.

/// Binds the folder; hold the guard while a snapshot is compared.
pub fn bind() -> insta::internals::SettingsBindDropGuard {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.bind_to_scope()
}
